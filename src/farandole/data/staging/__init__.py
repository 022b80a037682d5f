"""Staging: each byte of a data set is read from shared storage once in a job, and then sent between its hosts."""
