"""Camera poses from photographs and videos: what goes in, the stages of the estimation, the report."""
