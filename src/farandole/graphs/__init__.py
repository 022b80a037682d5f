"""Collectives inside compiled graphs of XLA and TensorFlow, as native calls that return at once."""
