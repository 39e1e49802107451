"""What `python -m gluon_gc plan` reads and prints. The predictions are made in `gluon_gc.auto`."""
