"""The panels of the page, one file each."""
