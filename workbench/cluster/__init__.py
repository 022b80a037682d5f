"""Hosts made of Linux namespaces, and the faults that hosts can have: for tests and benchmarks, on one machine.

    from workbench.cluster import Cluster, SlurmCluster

    with Cluster(2) as cluster:                                        # head, node1, node2: a few tenths of a second
        cluster.run("head", ["ssh", "node2", "hostname"]).stdout       # node2
        job = cluster.popen("head", ["farandole", "run", "-H", "node1:2,node2:2", "python", "train.py"])
        cluster.rate("node1", "1gbit")                                 # the cable, both ways
        cluster.cut("node2")                                           # pull it; heal("node2") puts it back
        cluster.kill("node2")                                          # power loss; boot("node2")
        cluster.freeze("node2")                                        # thaw("node2")
        job.wait(60)
        cluster.processes("node1")                                     # {}: it left nothing

    with SlurmCluster(2) as slurm:                                            # the same under a real Slurm
        slurm.run(["srun", "-N2", "python", "train.py"])

A host has a network, a hostname, processes, ``/run``, ``/dev/shm`` and an identity of its own, and runs an ssh server;
all other file systems are the machine's, so ``sys.executable`` and the folders of a test are the same everywhere. The
home directory belongs to the cluster, with keys for ssh in it and no ``.bashrc``. Clusters see neither each other nor
anything outside, and end with their process in any case. They need root (or ``docker run --privileged``) and a few
Debian packages; ``UnavailableError`` names what is missing, and the remedy.
"""

from workbench.cluster.files import HOME
from workbench.cluster.hosts import HEAD, Cluster, Process
from workbench.cluster.needs import ClusterError, UnavailableError
from workbench.cluster.slurm import URGENT, SlurmCluster

__all__ = ["HEAD", "HOME", "URGENT", "Cluster", "ClusterError", "Process", "SlurmCluster", "UnavailableError"]
