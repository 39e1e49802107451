"""What the examples share: command-line arguments, the training log, the checksum of a network."""
