"""Gradient descent: the losses, their gradients on one rank or several, and the optimizer."""
