"""Settings of a job: type, default, help, command-line flags and environment variables of each knob, in one place.

    >>> Settings.resolve(arguments={"engine": "tcp"}, environment={"FARANDOLE_STALL_WARNING_S": "5"}).stall_warning_s
    5.0

Argument beats file beats environment beats default. Unknown names are refused with the legal ones.
"""

from __future__ import annotations

import difflib
import os
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, final

import msgspec

from farandole.errors import SettingsError

PREFIX = "FARANDOLE_"

FOREVER_S = 1e8


@final
class Knob(msgspec.Struct, frozen=True):
    """Description of one setting, besides its type and default.

    ``flags`` and ``off_flags`` are its names on the command line (``flag_scale`` converts the flag's unit).
    ``horovod`` is the environment variable of Horovod that is accepted, too; with ``horovod_negates`` that variable
    turns the knob off. ``group`` is its heading in the help of commands, ``metavar`` the placeholder for a text there.
    ``job_wide``: the launcher or the controller reads it, so that a single worker cannot change it.
    """

    help: str
    flags: tuple[str, ...] = ()
    horovod: str = ""
    flag_scale: float = 1.0
    horovod_negates: bool = False
    off_flags: tuple[str, ...] = ()
    group: str = "collectives"
    metavar: str = "FILE"
    job_wide: bool = False


EngineName = Literal["auto", "solo", "shm", "nccl", "mpi", "tcp", "hybrid"]
Across = Literal["auto", "mpi", "tcp", "nccl"]
Overlap = Literal["auto", "step", "backward"]
LogLevel = Literal["trace", "debug", "info", "warning", "error", "fatal"]
InputKind = Literal["data", "fake"]
OnFailure = Literal["stop", "continue"]
CheckDivergence = Literal["off", "sampled", "every-step"]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Radix = Annotated[int, msgspec.Meta(ge=2)]
Pair = tuple[Seconds, Seconds]

PORTS, LAST_PORT = re.compile(r"[0-9]{1,5}-[0-9]{1,5}"), 65535
"""Syntax of a range of ports, and the highest port number."""


@final
class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All knobs of a job. Field names are the names in ``farandole.toml`` and, upper-cased, in the environment."""

    engine: Annotated[
        EngineName, Knob("engine that moves the data; auto chooses one and logs why", ("--engine",), job_wide=True)
    ] = "auto"
    across: Annotated[
        Across,
        Knob("engine between hosts, if shared memory is used within each host", ("--across",), job_wide=True),
    ] = "auto"
    overlap: Annotated[
        Overlap, Knob("reduce gradients after backward (step) or while it runs (backward)", ("--overlap",))
    ] = "auto"
    bucket_bytes: Annotated[Count, Knob("size of a gradient bucket, in bytes", ("--bucket-bytes",))] = 25 * 2**20
    fusion_threshold_bytes: Annotated[
        Count,
        Knob(
            "largest fused collective of the negotiated lane (the flag counts MiB); 0 turns fusion off",
            ("--fusion-threshold-mb",),
            "HOROVOD_FUSION_THRESHOLD",
            flag_scale=2**20,
            job_wide=True,
        ),
    ] = 128 * 2**20
    cache_capacity: Annotated[
        Count,
        Knob(
            "signatures in the cache of the negotiated lane; 0 turns it off",
            ("--cache-capacity",),
            "HOROVOD_CACHE_CAPACITY",
            job_wide=True,
        ),
    ] = 1024
    input: Annotated[
        InputKind,
        Knob("fake repeats one batch, which shows the speed without waiting for data", ("--input",)),
    ] = "data"
    check_divergence: Annotated[
        CheckDivergence,
        Knob(
            "compare what the optimizers of the ranks apply: samples of it, or all of it at every step",
            ("--check-divergence",),
        ),
    ] = "sampled"
    stall_check: Annotated[
        bool,
        Knob(
            "report and end stalled collectives",
            off_flags=("--no-stall-check",),
            horovod="HOROVOD_STALL_CHECK_DISABLE",
            horovod_negates=True,
            group="stalls",
            job_wide=True,
        ),
    ] = True
    stall_warning_s: Annotated[
        Seconds,
        Knob(
            "seconds until a stalled collective is reported",
            ("--stall-check-warning-time-seconds",),
            "HOROVOD_STALL_CHECK_TIME_SECONDS",
            group="stalls",
            job_wide=True,
        ),
    ] = 60.0
    stall_shutdown_s: Annotated[
        Seconds,
        Knob(
            "seconds until a stalled collective raises on every rank",
            ("--stall-check-shutdown-time-seconds",),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
            group="stalls",
            job_wide=True,
        ),
    ] = 600.0
    start_timeout_s: Annotated[
        Seconds,
        Knob(
            "seconds until every rank must have called init()",
            ("--start-timeout",),
            "HOROVOD_START_TIMEOUT",
            group="start and end",
        ),
    ] = 30.0
    host_timeout_s: Annotated[
        Seconds,
        Knob(
            "seconds of silence after which a host counts as lost; 0: never",
            ("--host-timeout",),
            group="many hosts",
            job_wide=True,
        ),
    ] = 3.0
    tree_radix: Annotated[
        Radix,
        Knob(
            "most ranks or hosts connected to one process of the control plane; larger jobs have a tree of relays",
            ("--tree-radix",),
            group="many hosts",
            job_wide=True,
        ),
    ] = 32
    network_interface: Annotated[
        str,
        Knob(
            "network interface that other hosts connect to (default: the first that answers)",
            ("--network-interface", "--network-interfaces"),
            group="many hosts",
            metavar="NAME",
        ),
    ] = ""
    ports: Annotated[
        str,
        Knob(
            "ports for connections from other hosts, such as a firewall allows: 60001-63000 (default: any free port)",
            ("--ports",),
            group="many hosts",
            metavar="FIRST-LAST",
        ),
    ] = ""
    rendezvous_dir: Annotated[
        str,
        Knob(
            "folder on a shared file system, for jobs without a launcher (default: the working directory)",
            group="many hosts",
        ),
    ] = ""
    grace_s: Annotated[
        Seconds,
        Knob(
            "seconds between SIGTERM and SIGKILL when workers are ended",
            ("--grace-seconds",),
            group="start and end",
            job_wide=True,
        ),
    ] = 5.0
    on_failure: Annotated[
        OnFailure,
        Knob(
            "after a worker has failed: end the job, or let the other workers continue",
            ("--on-failure",),
            group="start and end",
            job_wide=True,
        ),
    ] = "stop"
    horovod: Annotated[
        bool,
        Knob(
            "'import horovod' imports Farandole in the workers and in their children",
            ("--horovod",),
            group="start and end",
            job_wide=True,
        ),
    ] = False
    cray: Annotated[
        bool,
        Knob(
            "'import ml_comm' and 'import dl_comm' import the calls of Cray's plugin",
            ("--cray",),
            group="start and end",
            job_wide=True,
        ),
    ] = False
    torch_env: Annotated[
        bool,
        Knob(
            "set RANK, WORLD_SIZE, MASTER_ADDR, ... for torch.distributed in workers of static jobs",
            ("--torch-env",),
            group="start and end",
            job_wide=True,
        ),
    ] = True
    tf_config: Annotated[
        bool,
        Knob(
            "set TF_CONFIG for TensorFlow's own distribution in workers of static jobs",
            ("--tf-config",),
            group="start and end",
            job_wide=True,
        ),
    ] = False
    min_np: Annotated[
        Count,
        Knob(
            "fewest workers to train with; makes the job elastic",
            ("--min-np", "--min-num-proc"),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = 0
    max_np: Annotated[
        Count,
        Knob(
            "most workers to train with; 0: as many as there are slots",
            ("--max-np", "--max-num-proc"),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = 0
    host_discovery_script: Annotated[
        str,
        Knob(
            "program that prints the present hosts, one HOST or HOST:SLOTS per line; makes the job elastic",
            ("--host-discovery-script",),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = ""
    slots_per_host: Annotated[
        Count,
        Knob(
            "slots of hosts that are listed without a number; 0: one",
            ("--slots-per-host",),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = 0
    elastic_timeout_s: Annotated[
        Seconds,
        Knob(
            "seconds that workers wait while there are fewer than --min-np",
            ("--elastic-timeout",),
            "HOROVOD_ELASTIC_TIMEOUT",
            group="elastic jobs",
            job_wide=True,
        ),
    ] = 600.0
    slurm_look_s: Annotated[
        Seconds,
        Knob(
            "seconds between two queries of the nodes of this Slurm job, which may shrink or grow; 0: no queries",
            ("--slurm-look",),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = 60.0
    reset_limit: Annotated[
        Count,
        Knob(
            "number of times that workers may re-form before the job ends; 0: no limit",
            ("--reset-limit",),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = 0
    blacklist_cooldown_range: Annotated[
        Pair,
        Knob(
            "seconds until a failed worker is replaced: after its first failure, and at most",
            ("--blacklist-cooldown-range",),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = (0.0, 60.0)
    hang_timeout_s: Annotated[
        Seconds,
        Knob(
            "seconds, or five of their longest recent steps if these take longer, that others wait for a rank that "
            "gives no sign of life, until it is killed; 0: never",
            ("--hang-timeout",),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = 5.0
    elastic_journal: Annotated[
        str,
        Knob(
            "write all decisions about the membership, with their reasons, to this file",
            ("--elastic-journal",),
            group="elastic jobs",
            job_wide=True,
        ),
    ] = ""
    dynamic_process_sets: Annotated[
        bool,
        Knob(
            "allow add_process_set() after init()",
            ("--dynamic-process-sets",),
            "HOROVOD_DYNAMIC_PROCESS_SETS",
            job_wide=True,
        ),
    ] = True
    timeline: Annotated[
        str,
        Knob(
            "write one Chrome trace of all ranks to this file",
            ("--timeline", "--timeline-filename"),
            "HOROVOD_TIMELINE",
            group="what is recorded",
        ),
    ] = ""
    timeline_mark_cycles: Annotated[
        bool,
        Knob(
            "mark in the timeline when orders to begin collectives arrived",
            ("--timeline-mark-cycles",),
            "HOROVOD_TIMELINE_MARK_CYCLES",
            group="what is recorded",
        ),
    ] = False
    mllog: Annotated[
        str,
        Knob(
            "write an MLPerf log of the training to this file, which must not exist yet",
            ("--mllog",),
            group="what is recorded",
            job_wide=True,
        ),
    ] = ""
    live_stay_s: Annotated[
        Seconds,
        Knob(
            "seconds that a live page is served after the end of its run",
            ("--live-stay",),
            group="what is recorded",
            job_wide=True,
        ),
    ] = 60.0
    log_level: Annotated[
        LogLevel,
        Knob("least severe message that is logged", ("--log-level",), "HOROVOD_LOG_LEVEL", group="what is recorded"),
    ] = "warning"

    @property
    def is_elastic(self) -> bool:
        """True if workers may join and leave while the job runs."""
        return bool(self.min_np or self.max_np or self.host_discovery_script)

    def stall_limit_s(self, seconds: float) -> float:
        """Limit of the stall inspector; practically infinite if the check is off or ``seconds`` is 0, as in Horovod."""
        return seconds if self.stall_check and seconds > 0 else FOREVER_S

    def as_static(self) -> Settings:
        """Settings of a job of fixed size, whatever was requested, because no launcher can start workers for it."""
        return msgspec.structs.replace(self, min_np=0, max_np=0, host_discovery_script="")

    @classmethod
    def resolve(
        cls,
        arguments: Mapping[str, Any] | None = None,
        file: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Settings:
        """Merge the sources; raises ``SettingsError`` for unknown names and for invalid values."""
        merged = _from_environment(os.environ if environment is None else environment)
        for source, place in ((file, "the settings file"), (arguments, "the arguments")):
            for name, value in (source or {}).items():
                if name not in KNOBS:
                    raise SettingsError(_unknown(name, place, list(KNOBS)))
                if value is not None:
                    merged[name] = value
        for name in PAIRS & merged.keys():
            if isinstance(merged[name], str):
                merged[name] = merged[name].replace(",", " ").split()
        try:
            settings = msgspec.convert(merged, cls, strict=False)
        except msgspec.ValidationError as error:
            raise SettingsError(_misfit(str(error), merged)) from error
        port_range(settings.ports)
        return settings

    def to_environment(self, base: Settings | None = None) -> dict[str, str]:
        """Variables that turn ``base`` (or the defaults) into these settings, for a worker that has ``base``."""
        base = base or Settings()
        return {
            PREFIX + name.upper(): _text(getattr(self, name))
            for name in KNOBS
            if getattr(self, name) != getattr(base, name)
        }


KNOBS: dict[str, Knob] = {
    name: next(meta for meta in annotation.__metadata__ if isinstance(meta, Knob))
    for name, annotation in typing.get_type_hints(Settings, include_extras=True).items()
}

PAIRS = {name for name, kind in typing.get_type_hints(Settings).items() if typing.get_origin(kind) is tuple}
"""Knobs of two numbers, written side by side as text."""

IDENTITY = tuple(
    PREFIX + n
    for n in (
        "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE",
        "HOSTNAME", "CONTROLLER", "KEY", "LAUNCHED", "WATCHED", "WORKER_ID", "CALLER", "PYTHON", "OUTPUT",
    )
)  # fmt: skip
"""Variables that identify a process; they are not knobs, and ``cluster`` reads them."""


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, knob in KNOBS.items():
        if knob.horovod and environment.get(knob.horovod):
            merged[name] = _translate(knob, environment[knob.horovod])
    legal = [PREFIX + name.upper() for name in KNOBS]
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable in IDENTITY:
            continue
        if variable not in legal:
            raise SettingsError(_unknown(variable, "the environment", legal))
        merged[variable.removeprefix(PREFIX).lower()] = value
    return merged


def _translate(knob: Knob, value: str) -> str:
    """Translate a Horovod value: its log levels are in capitals, and one of its variables negates our knob."""
    if knob.horovod_negates:
        return "true" if value in ("0", "false", "False") else "false"
    return value.lower() if knob.horovod == "HOROVOD_LOG_LEVEL" else value


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str, place: str, legal: list[str]) -> str:
    close = difflib.get_close_matches(name, legal, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    return f"{name} in {place} is no setting of Farandole{hint} The legal names are: {', '.join(sorted(legal))}"


def port_range(text: str) -> range:
    """Ports of ``--ports``, as in ``"60001-63000"``; "" stands for 0, any free port. Raises ``SettingsError``."""
    if not text:
        return range(1)
    first, last = map(int, text.split("-")) if PORTS.fullmatch(text) else (0, 0)
    if not 0 < first <= last <= LAST_PORT:
        raise SettingsError(f"--ports {text}: write FIRST-LAST, of ports from 1 to {LAST_PORT}, such as 60001-63000")
    return range(first, last + 1)


def _misfit(problem: str, merged: Mapping[str, Any]) -> str:
    """Error text for an invalid value, with the legal ones, from msgspec's text that ends in `` - at `$.grace_s` ``."""
    expected, _, path = problem.rpartition(" - at `$.")
    name = re.split(r"\W", path)[0]
    kind = typing.get_type_hints(Settings)[name]
    if typing.get_origin(kind) is Literal:
        expected = f"the legal values are: {', '.join(typing.get_args(kind))}"
    spellings = ", ".join((*KNOBS[name].flags[:1], PREFIX + name.upper()))
    return f"{name} ({spellings}) cannot be {_text(merged[name])!r}: {expected}"
