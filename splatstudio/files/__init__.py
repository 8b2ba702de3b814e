"""Files that are complete or not there, and the folder of a run with its lock."""
