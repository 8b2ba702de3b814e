"""Cameras, the paths that they move along, and where an exported model lies; their files."""
