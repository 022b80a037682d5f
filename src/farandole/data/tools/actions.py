"""Implementation of the commands ``farandole data ...``, which needs NumPy and more; ``command`` has their options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from farandole.data.formats.source import Source
from farandole.data.planning.picture import picture
from farandole.data.planning.plan import HostSpec
from farandole.data.planning.simulate import StagingRates, foretell, readable, table
from farandole.data.staging.cache import PLANS, clean
from farandole.data.staging.checksums import checksums_of
from farandole.data.staging.host_plan import plan_with_stream
from farandole.data.staging.plan_journal import replay
from farandole.data.staging.stage import cache_folder, parse_bytes
from farandole.data.storage.listing import INDEX_NAME
from farandole.data.storage.manifest import MAGIC, Manifest
from farandole.data.storage.pieces import Pieces, most_bytes
from farandole.data.tools.copy import listed
from farandole.data.tools.doctor import diagnose
from farandole.data.tools.formats import format_of, reader
from farandole.data.tools.pack import pack
from farandole.errors import UsageError

KEYED = {"hdf5": "keys", "netcdf": "variables", "zarr": "arrays", "arrays": "keys", "geotiff": "bands"}
"""Formats with an argument that selects what is read, and its name."""


def index(args: argparse.Namespace) -> int:
    """List files and samples, and store the list."""
    source = _source(args)
    manifest, pieces = source.manifest, Pieces.of(source.manifest)
    if args.checksums:
        manifest = manifest.with_sums(checksums_of(manifest, pieces, source.store))
    target = Path(args.output or Path(manifest.root) / INDEX_NAME)
    manifest.save(target)
    print(f"format   {manifest.format}")
    print(f"files    {len(manifest.paths)}, {readable(manifest.nbytes)} in {len(pieces)} pieces")
    print(f"samples  {manifest.samples}")
    print(f"index    {target}, {target.stat().st_size} bytes{', with checksums' if args.checksums else ''}")
    return 0


def show_plan(args: argparse.Namespace) -> int:
    """Predict which host reads what, bytes and times."""
    limit = parse_bytes(args.limit)
    manifest = _manifest(args.path)
    pieces = Pieces.of(manifest, most_bytes(manifest, limit))
    hosts = [HostSpec(f"host{number:0{len(str(args.hosts))}}", limit) for number in range(args.hosts)]
    staging = plan_with_stream(pieces.sizes, hosts)
    rates = StagingRates(float(parse_bytes(args.rate)), float(parse_bytes(args.link)))
    foretold = foretell(staging, rates, args.epochs, args.window, args.rows)
    print("\n".join(table(staging, foretold)))
    if limit < pieces.least_room:
        print(f"a job refuses this limit, as a cache needs room for two pieces: give {pieces.least_room} or more")
    if args.picture:
        picture(staging, foretold, args.picture)
        print(f"drawn in {args.picture}")
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Report whether samples are sorted."""

    def label(sample: Any) -> Any:
        found = sample if not args.label else _part(sample, args.label)
        return np.mean(found) if isinstance(found, np.ndarray) and found.size > 16 else found

    print(diagnose(_source(args), label, args.window))
    return 0


def pack_samples(args: argparse.Namespace) -> int:
    """Write samples into shards that others read."""
    shard_bytes = parse_bytes(args.shard)
    if shard_bytes < 1:
        raise UsageError(f"--shard {args.shard}: give the size of a file, as in --shard 256MB")
    source = _source(args)
    if not len(source):
        raise UsageError(f"{args.path} has no samples: give a folder or file that has some")
    written = pack(source, args.target, args.into, shuffle=args.shuffle, seed=args.seed, shard_bytes=shard_bytes)
    what = "a Zarr store" if args.into == "zarr" else f"{len(written)} shard{'s' * (len(written) != 1)}"
    print(f"{len(source)} samples in {what}: {', '.join(map(str, written[:1]))}{' ...' * (len(written) > 1)}")
    print(f"read them by farandole.data.{_call(source, written, args)}")
    return 0


def replay_plans(args: argparse.Namespace) -> int:
    """Compute the recorded plans of jobs again. Raises ``UsageError`` if one differs, or none is recorded."""
    base = Path(cache_folder(args.path))
    found = [base] if base.is_file() else sorted(base.glob(f"farandole-cache-{os.geteuid()}/*/{PLANS}"))
    if not found:
        raise UsageError(f"{base} has no recorded plans: give cache= of a job, or FILE.data of --elastic-journal FILE")
    for path in found:
        print(path)
        with path.open("rb") as lines:
            for record, staging in replay(lines):
                hosts = ", ".join(f"{each.name}{' (leaves)' * each.leaving}" for each in record.hosts)
                print(f"generation {record.generation}: {readable(staging.data_bytes)} on {hosts}", end="; ")
                print(f"read {readable(staging.read_bytes)}, copied {readable(staging.sent_bytes)}")
    return 0


def clean_cache(args: argparse.Namespace) -> int:
    """Delete caches that no job uses."""
    base = cache_folder(args.cache)
    if not os.path.isdir(base):
        raise UsageError(f"{base} does not exist: give cache= of a job")
    print(f"{readable(clean(base))} freed in {base}")
    return 0


def _call(source: Source, written: list[Path], args: argparse.Namespace) -> str:
    """The call that reads what ``pack`` has written."""
    if args.into == "zarr":
        names = sorted(found.parent.name for found in written[0].glob("*/zarr.json"))
        return f'zarr("{written[0]}", arrays={names})'
    is_example = args.into == "tfrecord" and not isinstance(source[0], bytes)
    return f'{args.into}("{args.target}"{", example=True" * is_example})'


def _source(args: argparse.Namespace) -> Source:
    name = args.format or format_of(args.path)
    keys = [key for key in args.keys.split(",") if key]
    if keys and name not in KEYED:
        raise UsageError(f"--keys: samples of {name} are read whole; leave it out")
    options: dict[str, Any] = {KEYED[name]: keys if len(keys) > 1 else keys[0]} if keys else {}
    if name == "geotiff" and keys:
        options = {"group": "folder", "bands": keys}
    if name == "tfrecord" and args.verb != "index":
        options["example"] = True
    return reader(name)(args.path, **options)


def _manifest(path: str) -> Manifest:
    """A stored manifest, the index in a folder, or a manifest of the files alone: a plan needs no samples."""
    for stored in (Path(path), Path(path) / INDEX_NAME):
        if stored.is_file():
            with open(stored, "rb") as file:
                if file.read(len(MAGIC)) == MAGIC:
                    return Manifest.load(stored)
    return listed(path, hidden=False)


def _part(sample: Any, name: str) -> Any:
    if isinstance(sample, dict) and name in sample:
        return sample[name]
    if isinstance(sample, tuple) and name.isdecimal() and int(name) < len(sample):
        return sample[int(name)]
    there = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
    raise UsageError(f"--label {name}: a sample has no such part, but {there}")
