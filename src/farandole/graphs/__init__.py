"""Collectives inside of compiled graphs, those of XLA and of TensorFlow: native calls that return at once."""
