"""Camera poses from photos and videos: what goes in, the stages of the estimation, the report."""
