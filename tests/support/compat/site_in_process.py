"""The ``horovod`` of Farandole in this process, for one test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from farandole.launch.hosts.horovod_site import HOROVOD_SITE


@pytest.fixture
def horovod_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Put it on the path, and forget its modules afterwards."""
    monkeypatch.syspath_prepend(HOROVOD_SITE)
    yield HOROVOD_SITE
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "horovod._absent"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]
