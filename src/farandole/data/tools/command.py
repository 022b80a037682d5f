"""``farandole data index | plan | doctor | pack | replay | clean``: commands for data sets and their caches.

farandole data index /lustre/set --format hdf5 --keys x,y
farandole data plan /lustre/set --hosts 16 --limit 200GB --epochs 50
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from farandole.errors import UsageError

FORMATS = (
    "array_record", "arrays", "files", "fits", "geotiff", "grib", "hdf5", "images", "netcdf", "parquet", "tar",
    "tfrecord", "zarr",
)  # fmt: skip

EXAMPLES = """\
examples:
  farandole data index /lustre/set --format hdf5 --keys x,y
      list the files and samples once; then: hdf5(index=...)
  farandole data plan /lustre/set --hosts 16 --limit 200GB --epochs 50
      which host reads what, how much, and how long that takes
  farandole data doctor /lustre/set --keys x,y --label y
      check whether the samples are sorted, so that windows do not shuffle them
  farandole data pack --shuffle /lustre/set /lustre/packed --into tfrecord
      write the samples in random order, into shards that other libraries read, too
  farandole data replay
      compute again the plans that jobs have recorded in $TMPDIR
  farandole data clean
      delete caches in $TMPDIR that no job uses
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``data`` to the commands."""
    parser = subparsers.add_parser("data", help="index, plan, diagnose, pack and clean data sets", description=EXAMPLES)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    index = _verb(verbs, "index", "list files and samples once", "index")
    _add_source(index)
    index.add_argument("-o", "--output", default="", metavar="FILE", help="default: PATH/.farandole-index")
    index.add_argument("--checksums", action="store_true", help="read all, so that damage at the source is found later")
    planned = _verb(verbs, "plan", "predict what each host reads, bytes and times", "show_plan")
    planned.add_argument("path", metavar="PATH", help="folder, pattern, URL, or an index")
    planned.add_argument("--hosts", type=int, required=True, metavar="N", help="hosts of the job")
    planned.add_argument("--limit", required=True, metavar="SIZE", help="cache of each host: 200GB")
    planned.add_argument("--epochs", type=int, default=1, metavar="N", help="epochs (default: 1)")
    planned.add_argument(
        "--rate", default="5GB", metavar="SIZE", help="shared storage, a second, in all (default: 5GB)"
    )
    planned.add_argument("--link", default="1GB", metavar="SIZE", help="link of a host, per second (default: 1GB)")
    planned.add_argument("--rows", type=int, default=64, metavar="N", help="samples of a host in a step (default: 64)")
    planned.add_argument("--window", type=int, default=8, metavar="N", help="pieces for the first batch (default: 8)")
    planned.add_argument("--picture", default="", metavar="FILE", help="draw it: plan.png")
    doctor = _verb(verbs, "doctor", "check whether samples are sorted", "doctor")
    _add_source(doctor)
    doctor.add_argument("--label", default="", metavar="NAME", help="part of a sample to look at (default: all of it)")
    doctor.add_argument("--window", type=int, default=8, metavar="N", help="pieces that are shuffled together")
    packed = _verb(verbs, "pack", "write samples into shards that other libraries read", "pack_samples")
    _add_source(packed)
    packed.add_argument("target", metavar="DST", help="folder to write to")
    packed.add_argument("--into", choices=("tfrecord", "tar", "zarr"), default="tfrecord", help="default: tfrecord")
    packed.add_argument("--shuffle", action="store_true", help="in random order")
    packed.add_argument("--seed", type=int, default=0, metavar="N", help="of that order (default: 0)")
    packed.add_argument("--shard", default="256MB", metavar="SIZE", help="bytes of a shard (default: 256MB)")
    replayed = _verb(verbs, "replay", "compute the recorded plans of jobs again, and compare", "replay_plans")
    replayed.add_argument("path", nargs="?", default="$TMPDIR", metavar="PATH", help="cache, or FILE.data of a journal")
    cleaned = _verb(verbs, "clean", "delete caches that no job uses", "clean_cache")
    cleaned.add_argument("cache", nargs="?", default="$TMPDIR", metavar="CACHE", help="default: $TMPDIR")


def _verb(verbs: Any, name: str, words: str, action: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
    parser.set_defaults(main=lambda args: _run_action(action, args))
    return parser


def _run_action(action: str, args: argparse.Namespace) -> int:
    try:
        actions = importlib.import_module("farandole.data.tools.actions")
    except ModuleNotFoundError as error:
        raise UsageError(f'this needs the package {error.name}: pip install "farandole[data]"') from error
    return int(getattr(actions, action)(args))


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="folder, pattern or URL")
    parser.add_argument("--format", default="", choices=("", *FORMATS), metavar="NAME", help="default: by the names")
    parser.add_argument("--keys", default="", metavar="A,B", help="data sets, variables, arrays, or bands of folders")
