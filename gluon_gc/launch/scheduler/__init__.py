"""The scheduler, and how nodes join the cluster and stay connected. It runs no framework."""
