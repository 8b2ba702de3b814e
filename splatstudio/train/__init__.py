"""The training of one model: what a step learns from, what it does, when it is saved and judged."""
