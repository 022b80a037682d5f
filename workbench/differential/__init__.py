"""Differential fuzzer: programs of what users do, run by Farandole and by the dullest possible oracle.

    python -m workbench.differential --programs 10000 --seed 1

``generator`` makes a program from a seed; ``oracle`` runs it on plain PyTorch, ranks as threads, averages in float64;
``job`` and ``worker`` run it on 1, 2 and 3 ranks; ``verdict`` compares; ``shrink`` leaves out what a finding does not
need. Equal numbers and, where the oracle's ranks have the same bits, the same bits; or an error on every rank; no hang.
"""
