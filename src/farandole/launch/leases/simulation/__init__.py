"""Simulation of leases: a training on a trace of a cluster, decided by the policy of real runs."""
