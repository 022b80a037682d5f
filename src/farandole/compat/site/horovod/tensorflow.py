"""Not there yet; importing it says so."""

from __future__ import annotations

from horovod._absent import explain

raise ImportError(explain(__name__), name=__name__)
