"""The engine of jobs on several hosts: shared memory inside of each, another engine between them."""
