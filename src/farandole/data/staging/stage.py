"""``stage``: reads each byte of a data set from shared storage once per job, and caches it on the hosts.

data = hvd.data.stage(hvd.data.tfrecord("/lustre/cosmo/train"), cache="$TMPDIR", limit="200GB")
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import weakref
from typing import TypeVar

import xxhash

from farandole.cluster.detect import detect
from farandole.control.keys import JobKeys
from farandole.data.formats.source import Source, raise_everywhere
from farandole.data.staging.cache import keep_index
from farandole.data.staging.layout import StagedLayout
from farandole.data.staging.link import StagerLink
from farandole.data.staging.protocol import StagerConfig
from farandole.data.staging.staged_files import StagedFiles
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import most_bytes
from farandole.errors import DataError, UsageError
from farandole.runtime.session.init import current, is_initialized
from farandole.settings import Settings

AnySource = TypeVar("AnySource", bound=Source)

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
UNLIMITED = 2**62
links: weakref.WeakSet[StagerLink] = weakref.WeakSet()
"""Links of this process, which are closed when it exits."""


def stage(
    source: AnySource,
    cache: str | os.PathLike[str] = "$TMPDIR",
    limit: str | int | None = None,
    *,
    window: int = 8,
    patience_s: float = 30.0,
    give_up_s: float = 600.0,
    mirror: str = "",
) -> AnySource:
    """Read the samples of ``source`` through caches on the hosts of the job; every rank calls this.

        data = hvd.data.stage(hvd.data.hdf5("/lustre/set", keys=["x", "y"]), limit="200GB")
        sampler = hvd.elastic.ElasticSampler(data)
        loader = hvd.elastic.DataLoader(data, global_batch_size=256, sampler=sampler, threads=8)

    Returns at once: the first batch needs ``window`` pieces of at most 64 MiB, and the rest arrives meanwhile. Only one
    host reads each byte from shared storage. Each piece gets as many copies as fit into ``limit`` bytes of each
    ``cache`` (by default nine tenths of the free space), at most one per host. If the data do not fit even once, as
    much as possible stays, and the rest is read once in each epoch. The cache stays for the next job; ``farandole data
    clean`` deletes it.

    A read of shared storage that makes no progress for ``patience_s`` is given to another host. If no host can read a
    sample within ``give_up_s``, the worker that needs it gets ``DataError``, which names file, offset and host.

    With ``mirror`` every host gets copies of the files in that folder, and no cache, for programs that open paths
    (``farandole run --stage``).

    Raises ``UsageError`` for an invalid limit or what is no source, ``DataError`` if the cache cannot be used or is too
    small.
    """
    if not isinstance(source, Source):
        raise UsageError(
            f"a {type(source).__name__} cannot be staged, as its files are unknown: give what a reader returns, as in "
            'stage(data.hdf5("/lustre/set", keys="x")), or train on it unstaged'
        )
    room, store, failure = parse_bytes(limit), None, ""
    try:
        store = _store(source.manifest, cache_folder(os.fspath(cache)), room, mirror, (patience_s, give_up_s))
    except DataError as error:
        failure = str(error)
    raise_everywhere(failure)
    assert store is not None
    layout = StagedLayout(store, window, room)
    try:
        layout.agree()
    except BaseException:
        store.link.close()  # the caller never gets the store
        raise
    staged = source.on(store)
    staged.layout = layout
    return staged


def _store(manifest: Manifest, base: str, room: int, mirror: str, waits_s: tuple[float, float]) -> StagedFiles:
    """Store of this process; its stager is not started yet."""
    most = most_bytes(manifest, room)
    host, keys, settings = "localhost", None, Settings()
    if is_initialized():
        host, keys, settings = current().topology.host, current().keys, current().settings
        if current().provisional:  # no link of its own yet, but its stager must reach the others
            keys = JobKeys.from_secret(detect().key)
    index, kept = keep_index(base, manifest)
    secret = keys.client.public if keys is not None else os.urandom(16)
    config = StagerConfig(
        cache=base,
        digest=manifest.digest,
        index=index,
        name=_name(f"{manifest.digest}{mirror}", host, most, secret),
        keys=keys,
        host=host,
        interface=settings.network_interface,
        ports=settings.ports,
        mirror=mirror,
        most_bytes=most,
        patience_s=waits_s[0],
        give_up_s=waits_s[1],
        hands_over=settings.is_elastic,
    )
    link = StagerLink(config)
    if not links:
        atexit.unregister(_say_good_bye)
        atexit.register(_say_good_bye)
    links.add(link)
    return StagedFiles(kept, link)


def parse_bytes(text: str | int | None) -> int:
    """Number of bytes: ``"200GB"`` is 200 × 10⁹, ``"2GiB"`` is 2 × 2³⁰. Raises ``UsageError`` for an invalid size."""
    if text is None or isinstance(text, int):
        return UNLIMITED if text is None else text
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?\s*", text.upper())
    if found is None or found[2] not in UNITS:
        raise UsageError(f'limit={text!r} is no size: write a number of bytes, "200GB", or "64GiB"')
    return int(float(found[1]) * UNITS[found[2]])


def cache_folder(text: str) -> str:
    """Folder of a cache, from a user's text: expands variables; ``$TMPDIR`` defaults to Python's temporary folder."""
    if not os.environ.get("TMPDIR"):
        text = text.replace("$TMPDIR", tempfile.gettempdir()).replace("${TMPDIR}", tempfile.gettempdir())
    return os.path.abspath(os.path.expanduser(os.path.expandvars(text)))


def _name(digest: str, host: str, most: int, secret: bytes) -> str:
    """Name at which the stager of a host listens: the same for all workers of the job there, and unique to the job."""
    told = b"|".join([secret, digest.encode(), host.encode(), b"%d" % most])
    return f"farandole-stage-{xxhash.xxh3_128_hexdigest(told)}"


def _say_good_bye() -> None:
    for link in list(links):
        link.close()
