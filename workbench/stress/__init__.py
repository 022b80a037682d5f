"""Stress: concurrency under load, again and again, until something hangs, differs or fails.

    python -m workbench.stress --seconds 1800 --seed 1

Every core is busy, some processes run at idle priority, and Farandole's locks, conditions and sockets stall at random
for up to 20 ms, so that interleavings come up that a quiet machine never shows. A loop that does not end in time is
asked for all stacks of all its processes, and for what each lane waits for, before it is ended.
"""
