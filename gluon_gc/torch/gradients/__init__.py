"""CompressionState: averages the gradients of a model."""
