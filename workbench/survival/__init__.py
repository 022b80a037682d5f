"""Survival of elastic jobs, shown with real processes: the table of faults, the soak, and re-forming many times.

    python -m workbench.survival faults --write docs/reference/faults.md
    python -m workbench.survival soak --seconds 900 --seed 1
    python -m workbench.survival reforms --number 1000

A fault comes at a phase of a rank's step (``fault_injection``), the training is ``training_script``, and what it has
lost is read from its ledger.
"""
