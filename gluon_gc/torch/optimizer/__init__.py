"""DistributedOptimizer: averages gradients without DistributedDataParallel."""
