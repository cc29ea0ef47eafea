"""Weights: converters from official checkpoints."""
