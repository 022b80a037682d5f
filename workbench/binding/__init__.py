"""The contract of bindings: everything that a module like ``farandole.torch`` owes its users, whatever its tensors are.

    from workbench.binding.contract import run_contract

``under_test`` is what a binding has to tell of itself; ``reductions``, ``exchanges``, ``refusals``, ``gradients``,
``training``, ``states`` and ``jobs`` are the cases, each a function of that; ``contract`` runs them in every rank of a
job. ``elastic_job`` is a job of its own, in which a worker is killed.
"""
