"""Simulated jobs on staged data."""
