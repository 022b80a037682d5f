"""Lanes of a worker: the ways of its collectives to an engine, and who decides their order."""
