"""The stages of the renderer and of a training step: native kernels, and the same in plain torch."""
