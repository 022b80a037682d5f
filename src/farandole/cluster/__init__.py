"""Floor 2: place. Detection of the starter of this process (launcher, Slurm, MPI, ...), and of its rank in the job."""
