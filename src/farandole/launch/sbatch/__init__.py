"""Batch scripts for Slurm's ``sbatch``: options, first lines, and environment."""
