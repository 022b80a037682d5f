"""Contract of bindings: the behaviour that a module like ``farandole.torch`` owes its users, for any kind of tensor.

    from workbench.binding.contract import run_contract

``under_test`` is the interface between a binding and the contract; ``reductions``, ``exchanges``, ``refusals``,
``gradients``, ``training``, ``states`` and ``jobs`` are the cases, functions of that interface; ``contract`` runs them
in every rank of a job. ``elastic_job`` is a separate job, in which a worker is killed.
"""
