"""Engine for GPUs."""
