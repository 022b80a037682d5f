"""Batch scripts for Slurm, and their submission."""
