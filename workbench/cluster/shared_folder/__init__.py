"""Shared storage for hosts under test: a folder that is served slowly, counted, stalled and corrupted on request.

    with Cluster(2) as cluster, SharedFolder("data", rate_bytes_s=50e6, latency_s=0.002) as storage:
        for host in cluster.nodes:
            folder = storage.mount(host, cluster)                 # the same path on all of them
        cluster.run("node1", ["cp", "-r", str(folder), "/dev/shm/copy"])
        storage.bytes(), storage.opens("node1"), storage.listings("node2")
        storage.stall("node1"); storage.heal("node1")             # its requests wait; those of others do not
        storage.corrupt("part/0.npy", 1000)                       # one byte is served flipped
        storage.fail("part/1.npy", errno.ESTALE, times=1)         # the next read of it

Each host has its own FUSE mount, read-only and without a cache (``direct_io``, but for mapped memory). One process
serves all mounts, so that they share one rate, like the hosts of a file system. Needs root and ``/dev/fuse``, nothing
installed; ``UnavailableError`` says what is missing.
"""

from workbench.cluster.shared_folder.folder import SharedFolder

__all__ = ["SharedFolder"]
