"""Algorithms on the parameters of a trainer."""
