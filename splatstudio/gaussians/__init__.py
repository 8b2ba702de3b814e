"""The model: Gaussians as six tensors, what is behind them, and how they are placed, turned and thinned."""
