"""Attacks that take long or need hosts: numbers on any engine, strangers, failing controllers, bad networks, clocks.

    python -m workbench.attacks numbers --engine hybrid+tcp --hosts aabb
    python -m workbench.attacks network

``docs/reference/attacks.md`` lists what held and what was fixed, with the command for each attack.
"""
