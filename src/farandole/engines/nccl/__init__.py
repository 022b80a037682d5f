"""The engine of GPUs."""
