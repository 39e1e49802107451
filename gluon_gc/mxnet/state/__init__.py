"""Checkpoints, suspension and resumption."""
