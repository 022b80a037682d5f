"""Scenarios on a real Dask cluster of two processes."""

from __future__ import annotations

import farandole.dask
from tests.support.clusters import scenarios
from tests.support.patience import PATIENCE_S

if __name__ == "__main__":
    import distributed

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        scenarios.play(farandole.dask.run, 2, lambda: client.wait_for_workers(2, timeout=PATIENCE_S))
        done = distributed.Event("done")
        other = client.submit(lambda: distributed.Event("done").wait(PATIENCE_S))
        scenarios.show("busy", **scenarios.raised(lambda: farandole.dask.run(len, ("",), np=2, start_timeout_s=2)))
        done.set()
        scenarios.show("free_again", waited=other.result(PATIENCE_S), results=farandole.dask.run(len, ("",), np=2))
