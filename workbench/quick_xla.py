"""Flags of XLA for processes that compile a hundred small programs, for which optimization does not pay."""

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
