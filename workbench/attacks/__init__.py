"""Attacks that take long or need hosts: numbers on any engine, strangers, dying controllers, bad networks, and clocks.

    python -m workbench.attacks numbers --engine hybrid+tcp --hosts aabb
    python -m workbench.attacks network

What held and what was mended stands in ``docs/reference/attacks.md``, with the command for each.
"""
