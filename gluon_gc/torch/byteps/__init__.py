"""BytePS's functions: start-up, broadcasts, and sums of single tensors."""
