"""EfficientNet: the model, a classifier of photos and a benchmark of training."""
