"""GPUs and processors: what they are doing, how they are joined, and how tensors get to them and back."""
