"""Where a cluster is impossible, the reason and the remedy are named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S
from workbench.cluster import Cluster, UnavailableError
from workbench.cluster.needs import require


def test_missing_packages_are_named() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: others are told that first")
    remedy = "apt-get install --no-install-recommends of-that of-this$"
    with pytest.raises(UnavailableError, match=remedy):
        require({"this-program-is-missing": "of-this", "sh": "dash", "that-one-too": "of-that", "and-this": "of-this"})


def test_others_than_root_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="root, and this is user 1000: sudo"):
        Cluster(1)


def test_a_root_without_capabilities_is_told_so(cluster: Cluster) -> None:
    attempt = "from workbench.cluster import Cluster; Cluster(1)"
    bare = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", attempt]
    done = subprocess.run(bare, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (
        "UnavailableError: this root may not make namespaces (unshare: unshare failed: Operation not permitted)"
        in done.stderr
    )
    assert "docker run --privileged" in done.stderr


def test_a_cluster_has_a_size() -> None:
    with pytest.raises(ValueError, match="a cluster of 0 nodes was asked for: 1 to 253 are possible"):
        Cluster(0)
