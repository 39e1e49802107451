"""The backends: how compressed gradients travel."""
