"""Starts and watches the processes of a cluster. It needs neither MXNet nor PyTorch."""
