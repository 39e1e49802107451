"""Modules that the examples share: arguments, data, the training loop, checkpoints, logs."""
