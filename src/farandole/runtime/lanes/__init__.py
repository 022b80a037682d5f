"""Lanes of a worker: how its collectives come to an engine, in which order, and who decides that."""
