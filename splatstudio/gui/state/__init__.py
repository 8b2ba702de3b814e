"""What the page knows: what is open, what each browser looks at, what was told."""
