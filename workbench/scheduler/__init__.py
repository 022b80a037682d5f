"""The contract of ``Scheduler``, and a scheduler in virtual time that keeps it.

    from workbench.scheduler.contract import run_contract

``under_test`` is what a scheduler has to tell of itself, ``contract`` the cases, ``bench`` what they are made of;
``fake`` is a cluster with nodes and a queue in which time passes when a test says so.
"""
