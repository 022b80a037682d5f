"""Leases: scheduler jobs that lend their nodes to a training in another job."""
