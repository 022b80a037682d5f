"""Floor 2: place. Detection of what started this process, and of its rank in the job."""
