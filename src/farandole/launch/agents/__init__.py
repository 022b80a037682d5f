"""Agents: what they do, and how they get to their hosts."""
