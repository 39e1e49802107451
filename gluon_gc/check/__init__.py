"""What `python -m gluon_gc check` looks at: installation, machine, network and variables.

A module for each of them has a function that yields `Finding`s.
"""
