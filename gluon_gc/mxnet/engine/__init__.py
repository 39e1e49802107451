"""MXNet's engine: the operators of our library, the order of operations, and memory."""
