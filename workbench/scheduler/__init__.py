"""Contract of ``Scheduler``, and a scheduler in virtual time that fulfils it.

    from workbench.scheduler.contract import run_contract

``under_test`` is the interface between a scheduler and the contract, ``contract`` the cases, ``bench`` their tools;
``fake`` is a cluster with nodes and a queue, in which time passes only when a test advances it.
"""
