"""Checkpoints: their files, who writes them, one of several ranks, and what lies in a folder of runs."""
