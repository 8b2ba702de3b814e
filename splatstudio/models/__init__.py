"""Trained models: opened, merged, scored, exported, filmed."""
