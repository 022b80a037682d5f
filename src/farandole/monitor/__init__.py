"""Monitoring of a training: its record in a folder, its live page, and the state that both are made from."""
