"""Hosts of a job: where its ranks go, and what each worker is started with."""
