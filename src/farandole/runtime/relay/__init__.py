"""Relays in the agents' processes: one connection to the controller for all workers of a host."""
