"""Helpers for tests that use Farandole, and for tests of extensions to it.

    from farandole.testing.harness import run_ranks              # a function on N real processes, without a launcher
    from farandole.testing.fork_server import fork_server        # ranks of many short runs start in milliseconds
    from farandole.testing.engine_contract import run_contract   # the suite every engine passes; run it over yours
    from farandole.testing.thread_engine import ThreadWorld      # an engine between threads of one process
    from farandole.testing.leaks import no_leaks                 # threads, descriptors, children, shared memory
    from farandole.testing.faults import Fault, inject           # faults at chosen steps of an elastic training script
    from farandole.testing.ledger import Ledger, read            # and proof that it lost no step and no sample

Contract suites of bindings and of schedulers are outside of the package, in a checkout of its sources. These helpers
need NumPy, but no framework.
"""
