"""Files that are files as they are read, and complete or not there when written; the folder of a run."""
