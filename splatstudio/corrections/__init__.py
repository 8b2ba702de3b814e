"""What is learned besides the Gaussians: the photos' colors, the cameras' places, the sky.

The loss alone sees color corrections and moved cameras; the sky is part of the model. Every rank of a
training holds all of them and makes the same steps, from gradients that are summed over the ranks.
"""
