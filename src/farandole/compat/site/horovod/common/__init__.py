"""Framework-independent modules of Horovod that scripts use."""
