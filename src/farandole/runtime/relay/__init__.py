"""Relays in the processes of agents: one connection to the controller for all workers of a host."""
