"""Worker of a search in an IPython engine: the task that a pool of engines sends to each engine.

    client[engine].apply_async(serve_in_engine, contact.encode(), own_path(), worker_id)

When the task ends, the seat of the engine, the session of its cells, its variables and its module path are as before.
So models of cells survive a search. Farandole's guard sets the session aside, as for every task.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence

from ipyparallel.engine.datapub import publish_data

from farandole.cluster import engine
from farandole.cluster.contact import Contact
from farandole.search.worker import serve

BEGUN = "begun"
"""Name under which the task publishes that it runs, and no longer waits behind other requests."""


def serve_in_engine(contact: bytes, path: Sequence[str], worker_id: int) -> None:
    """Work for the search until it no longer needs this engine; a SIGINT ends the work at once.

    ``path``: folders of the search's modules, which a function that is pickled by name needs here.
    """
    publish_data({BEGUN: True})
    with _as_it_was(), engine.by_variables():
        sys.path += [each for each in path if each not in sys.path]
        serve(Contact.decode(contact), worker_id)


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Restore what a worker changes in its process, which it may do only in a process of its own."""
    variables, path, frozen = dict(os.environ), list(sys.path), gc.get_freeze_count()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        if not frozen:
            gc.unfreeze()  # else objects of cells would never be collected
