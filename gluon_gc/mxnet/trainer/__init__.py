"""DistributedTrainer: its averages, hooks, checks and reports."""
