"""Exchanges among the workers of one machine through shared memory, and the backend for them."""
