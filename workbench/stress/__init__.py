"""Stress: concurrency under load, repeated until something hangs, differs or fails.

    python -m workbench.stress --seconds 1800 --seed 1

Every core is busy, some processes run at idle priority, and Farandole's locks, conditions and sockets stall at random
for up to 20 ms, which produces interleavings that a quiet machine never shows. If a loop does not end in time, all its
processes write their stacks, and what each lane waits for, before they are killed.
"""
