"""Helpers that tests and scripts import: built features, temporary environment variables, splitting of lists."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from farandole.runtime.collectives import basics

T = TypeVar("T")

_FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}
"""Available extensions, and the package that each needs."""


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Context that sets environment variables (``None`` removes one), and restores them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def gloo_built(verbose: bool = False) -> bool:  # noqa: ARG001 (Horovod's signature)
    """True if jobs can run without MPI."""
    return basics.gloo_built()


def mpi_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """True if an engine is built on MPI."""
    return basics.mpi_built()


def nccl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """True if an engine is built on NCCL."""
    return bool(basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """False: there is no such engine."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """False: there is no such engine."""
    return basics.ccl_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """True if a number of ranks is a power of two, which Adasum needs in Horovod but not in Farandole.

    >>> [n for n in range(10) if num_rank_is_power_2(n)]
    [1, 2, 4, 8]
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_iterable(x: object) -> bool:
    """True if ``iter(x)`` works.

    >>> is_iterable("text"), is_iterable(3)
    (True, False)
    """
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: ARG001
    """True if the framework ``ext_base_name`` sees a CUDA device."""
    if not extension_available(ext_base_name):
        return False
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    import torch

    return bool(torch.cuda.is_available())


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: ARG001
    """True if ``horovod.<ext_base_name>`` can be imported."""
    package = _FRAMEWORKS.get(ext_base_name)
    return package is not None and find_spec(package) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:  # noqa: ARG001
    """Raise ``ImportError`` unless the extension ``horovod.<name>`` is available."""
    name = ext_name.removeprefix("horovod.")
    if not extension_available(name):
        need = _FRAMEWORKS.get(name)
        why = f"{need} is not installed" if need else f"this release has {', '.join(_FRAMEWORKS)} only"
        raise ImportError(f"horovod.{name} cannot be used: {why}")


def split_list(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut ``items`` into ``parts`` runs whose lengths differ by at most one, longer ones first.

    >>> split_list([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    length, longer = divmod(len(items), parts)
    starts = [part * length + min(part, longer) for part in range(parts + 1)]
    return [items[start:end] for start, end in itertools.pairwise(starts)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare versions of three numbers; suffixes are ignored.

    >>> is_version_greater_equal_than("2.13.0+cpu", "2.2.0")
    True
    """
    return _numbers(ver) >= _numbers(target)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function once for each choice of arguments."""
    return functools.cache(function)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:3]
    digits = ["".join(c for c in part if c.isdigit()) for part in parts]
    if len(digits) != 3 or not all(digits):
        raise ValueError(f"{version!r} is no version of three numbers, like 2.13.0")
    return tuple(map(int, digits))


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
