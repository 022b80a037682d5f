"""Providers, which say where processes can run, and the fleet, which says which of them run."""
