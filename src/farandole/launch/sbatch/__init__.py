"""Batch scripts as Slurm's ``sbatch`` reads them: their options, their first lines, and what it is started with."""
