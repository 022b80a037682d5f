"""Decisions about data: in which order, by whom, from where. Pure, NumPy alone, the same in every process."""
