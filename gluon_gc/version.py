"""The version of gluon_gc, for the package, its build and the handshake of workers and servers."""

__version__ = "0.1.0"
