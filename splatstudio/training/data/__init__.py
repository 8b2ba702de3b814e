"""The photos of a training: which come next, how large, and which part of each."""
