"""The workers of one machine: the memory that they share, and the backend on it alone."""
