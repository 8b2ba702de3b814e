"""The training of one model: its steps, and what is due after them."""
