"""Helpers for tests that use Farandole, and for tests of extensions to it.

    from farandole.testing.harness import run_ranks              # a function on N real processes, without a launcher
    from farandole.testing.engine_contract import run_contract   # the suite every engine passes; run it over yours
    from farandole.testing.thread_engine import thread_engines   # an engine between threads of one process
    from farandole.testing.leaks import no_leaks                 # threads, descriptors, children, shared memory

NumPy is needed here, no framework is.
"""
