"""From Gaussians and a camera to a picture, also of a model whose Gaussians lie on several ranks."""
