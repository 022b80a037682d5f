"""Decisions about data: order, ranks, sources. Pure functions, with NumPy alone, the same in every process."""
