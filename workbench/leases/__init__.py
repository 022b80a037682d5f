"""Synthetic traces of a cluster: no real one is in the repository."""
