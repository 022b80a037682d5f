"""Hosts of a job: placement of its ranks, and the environment of each worker."""
