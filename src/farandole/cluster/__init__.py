"""Floor 2: place. What started this process, and which place it has in the job."""
