"""Adapters for the tools that people train with: Accelerate, Lightning and transformers' Trainer.

Each module needs its tool, so `gluon_gc.torch` imports none of them.
"""
