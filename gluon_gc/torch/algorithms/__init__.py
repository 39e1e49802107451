"""DistributedOptimizer with an algorithm."""
