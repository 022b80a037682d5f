"""Session of a worker: from ``init`` to ``shutdown``."""
