"""Every setting of a training, declared once; presets, and what a user should know of what was asked for."""
