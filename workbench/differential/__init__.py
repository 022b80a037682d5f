"""Differential fuzzer: generated programs of users, run by Farandole and by the simplest possible oracle.

    python -m workbench.differential --programs 10000 --seed 1

``generator`` makes a program from a seed; ``oracle`` runs it on plain PyTorch, ranks as threads, averages in float64;
``job`` and ``worker`` run it on 1, 2 and 3 ranks; ``verdict`` compares; ``shrink`` removes what a finding does not
need. Right are equal numbers, and equal bits if the oracle's ranks have them; or an error on every rank; no hang.
"""
