"""The session of a worker: from ``init`` to ``shutdown``."""
