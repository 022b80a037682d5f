"""Workbench: programs and models that test Farandole, and the hosts that they run on.

    python -m workbench.survival faults      # faults of elastic jobs (docs/reference/faults.md)
    python -m workbench.differential         # generated programs beside plain PyTorch (docs/reference/fuzzer.md)
    python -m workbench.stress               # repetition of what is concurrent, under load and stalls
    python -m workbench.attacks numbers      # attacks that take long or need hosts (docs/reference/attacks.md)
    python -m workbench.elastic.simulation   # an elastic job in virtual time; ``workbench.peers``: the peer lane
    from workbench.jobs import run_job                             # a function on N ranks of a job, without a launcher
    from workbench.binding.contract import run_contract            # what the module of a framework owes
    from workbench.scheduler.contract import run_contract          # what a scheduler owes; its fake lies beside it

``workbench.cluster`` makes hosts, and a Slurm, on one machine; ``workbench.install`` installs for the Makefile. The
workbench belongs to a checkout, is in no wheel, and may use private parts of the package; the package does not use the
workbench. ``farandole.testing`` has what extensions need.
"""
