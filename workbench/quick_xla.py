"""Flags of XLA for processes that compile a hundred small programs, which are not worth much of its time."""

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
