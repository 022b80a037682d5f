"""Synthetic traces of a cluster: no real trace is in the repository."""
