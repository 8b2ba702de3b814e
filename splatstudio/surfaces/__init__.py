"""From a trained model to a triangle mesh that says how good it is."""
