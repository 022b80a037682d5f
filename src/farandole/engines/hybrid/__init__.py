"""Engine of jobs on several hosts: shared memory inside each host, another engine between hosts."""
