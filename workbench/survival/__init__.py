"""Survival of elastic jobs, tested with real processes: the table of faults, the soak, and many re-formings.

    python -m workbench.survival faults --write docs/reference/faults.md
    python -m workbench.survival soak --seconds 900 --seed 1
    python -m workbench.survival reforms --number 1000

A fault occurs at a phase of a rank's step (``fault_injection``), the training is ``training_script``, and its ledger
shows what it has lost.
"""
