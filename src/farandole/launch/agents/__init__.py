"""Agents: the process on each host, and the ways to start it there."""
