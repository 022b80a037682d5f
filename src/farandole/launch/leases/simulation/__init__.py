"""Simulation of leases: a training over a trace of a cluster, by the policy that decides in earnest."""
