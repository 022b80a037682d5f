"""Slurm's short form of host lists, against Slurm itself where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.cluster.hostlist import expand, repeat, split
from farandole.errors import UsageError
from tests.support.patience import PATIENCE_S

prefixes = st.text("abcdefgh", min_size=1, max_size=4)
numbers = st.integers(0, 120)
widths = st.integers(1, 4)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    first, more, width = draw(numbers), draw(st.integers(0, 9)), draw(widths)
    text = str(first).zfill(width)
    return f"{text}-{str(first + more).zfill(width)}" if draw(st.booleans()) else text


brackets = st.lists(ranges(), min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
optional = brackets | st.just("")
items = st.builds(lambda *parts: "".join(parts), prefixes, optional, optional)
lists = st.lists(items, min_size=1, max_size=4).map(",".join)


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What ``scontrol`` needs to know of a cluster before it says anything at all."""
    file = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    file.write_text("ClusterName=x\nSlurmctldHost=x\nNodeName=x\nPartitionName=p Nodes=x\n")
    return {**os.environ, "SLURM_CONF": str(file)}


@pytest.mark.skipif(not shutil.which("scontrol"), reason="scontrol is not installed: apt-get install slurm-client")
@given(text=lists)
def test_slurm_expands_to_the_same(slurm_conf: dict[str, str], text: str) -> None:
    command = ["scontrol", "show", "hostnames", text]
    said = subprocess.run(command, env=slurm_conf, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert expand(text) == tuple(said.stdout.split())


@given(st.lists(st.tuples(prefixes, st.lists(numbers, min_size=1, max_size=5)), min_size=1, max_size=4))
def test_numbers_in_brackets_are_hosts_of_their_own(groups: list[tuple[str, list[int]]]) -> None:
    short = ",".join(f"{name}[{','.join(map(str, members))}]" for name, members in groups)
    assert expand(short) == tuple(f"{name}{n}" for name, members in groups for n in members)


def test_ranges_keep_their_zeros() -> None:
    assert expand("n[008-011]") == ("n008", "n009", "n010", "n011")
    assert expand("n[99-101],r[1-2]c[0-1]") == ("n99", "n100", "n101", "r1c0", "r1c1", "r2c0", "r2c1")
    assert expand("plain") == ("plain",)


@pytest.mark.parametrize(
    "text", ["", "a,", "n[]", "n[1", "n1]", "n[3-1]", "n[a]", "n[1-]", "n[1-2:2]", "n[[1]]", "n[1-99999999]", "n[-1]"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        expand(text)


def test_a_typing_error_does_not_fill_the_memory() -> None:
    with pytest.raises(UsageError, match="65536"):
        expand("a[1-9999]b[1-9999]c[1-9999]")


@given(st.lists(st.tuples(st.integers(1, 128), st.integers(1, 9)), min_size=1, max_size=5))
def test_repeated_numbers(groups: list[tuple[int, int]]) -> None:
    short = ",".join(f"{n}(x{times})" if times > 1 else str(n) for n, times in groups)
    assert repeat(short) == tuple(n for n, times in groups for _ in range(times))


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "2,,1", "1(x99999999)"])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"2\(x3\),1"):
        repeat(text)


@given(lists)
def test_lists_are_parted_at_commas_outside_of_brackets(text: str) -> None:
    assert ",".join(split(text)) == text
    assert all(item.count("[") == item.count("]") for item in split(text))
