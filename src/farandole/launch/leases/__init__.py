"""Leases: jobs of a scheduler that lend their nodes to a training which runs in another one."""
