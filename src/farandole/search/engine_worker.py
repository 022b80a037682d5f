"""Worker of a search in an IPython engine: the task that a pool of engines sends to each of its own.

    client[engine].apply_async(serve_in_engine, contact.encode(), own_path())

The engine is as it was when the task ends: its seat, the session of its cells, its variables and its modules' path. So
models of cells live through a search. Farandole's guard sets the session aside, as for any task.
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
"""Name under which the task publishes that it runs, and waits no more behind something else."""


def serve_in_engine(contact: bytes, path: Sequence[str]) -> None:
    """Be a worker of the search until it needs this engine no more; a SIGINT ends that at once.

    In the folders of ``path`` the search finds its modules: a function that is pickled by name needs them here.
    """
    publish_data({BEGUN: True})
    with _as_it_was(), engine.by_variables():
        sys.path += [each for each in path if each not in sys.path]
        serve(Contact.decode(contact))


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Restore what a worker changes in its process, and may, where that is its own."""
    variables, path, frozen = dict(os.environ), list(sys.path), gc.get_freeze_count()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        if not frozen:
            gc.unfreeze()  # else what cells have made would never be collected
