"""Adapters of frameworks: tensors as memory. Each module imports its own framework, and nothing of higher floors."""
