"""Accounting of a Slurm under test: slurmdbd on ``head``, with a database of its own, which ends with that host.

The database is a MariaDB without a network or rights, on a socket in the private ``/run`` of the host; its files lie
there, in memory. No database of the machine is read or written.
"""

from __future__ import annotations

from workbench.cluster.hosts import HEAD

DBD_CONF = "slurm/slurmdbd.conf"
"""File below ``/etc``; slurmdbd refuses one that others can read."""

DAEMONS = frozenset({"mariadbd", "slurmdbd"})

CLIENT = f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={HEAD}
AccountingStorageEnforce=limits
AccountingStoreFlags=job_env,job_script
"""
"""Lines of ``slurm.conf``. With ``limits`` a user needs an association; root has one by default. Scripts are stored."""

SERVER = f"""\
AuthType=auth/munge
DbdHost={HEAD}
SlurmUser=root
PidFile=/run/slurmdbd.pid
LogFile=/run/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""

_DATABASE = (
    "mariadbd --no-defaults --user=root --datadir=/run/db --skip-grant-tables --skip-networking --skip-log-bin "
    "--innodb-buffer-pool-size=16M --innodb-log-file-size=8M --innodb-flush-log-at-trx-commit=0"
)
_SOCKET = "/run/mysqld/mysqld.sock"
_TABLES = "/usr/share/mysql/mysql_system_tables.sql"

START = " && ".join(
    [
        "mkdir -p /run/mysqld /run/db/mysql",
        f"(echo 'use mysql;'; cat {_TABLES}) | {_DATABASE} --bootstrap",
        f"(setsid {_DATABASE} --socket={_SOCKET} --pid-file=/run/mysqld/pid </dev/null &)",
        f"for i in $(seq 300); do test -S {_SOCKET} && break; sleep 0.1; done",
        "slurmdbd",
        "for i in $(seq 300); do sacctmgr -n list cluster >/dev/null 2>&1 && break; sleep 0.1; done",
        "sacctmgr -i add cluster test",
    ]
)
"""Shell commands that start both on the head, before slurmctld."""
