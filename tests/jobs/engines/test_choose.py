"""The table that chooses an engine, and what it says when none fits."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.engines import candidates, choose, factory
from farandole.engines.engine import Group, Rendezvous
from farandole.errors import UnsupportedError

ALL = ["solo", "shm", "tcp", "hybrid"]
MPI = [*ALL, "mpi"]
GPU = [*ALL, "nccl"]


@pytest.mark.parametrize(
    ("asked", "across", "hosts", "usable", "expected"),
    [
        ("auto", "auto", ["a"], [ALL], ("solo", "this is a job of one process")),
        ("auto", "auto", ["a", "a"], [ALL, ALL], ("shm", "all 2 ranks are on one host")),
        ("auto", "auto", ["a", "a"], [MPI, MPI], ("shm", "all 2 ranks are on one host")),
        ("auto", "auto", ["a", "a"], [ALL, ["solo", "tcp"]], ("tcp", "all 2 ranks are on one host")),
        ("auto", "auto", ["a"] * 65, [ALL] * 65, ("tcp", "all 65 ranks are on one host")),
        ("auto", "auto", ["a", "b", "c"], [ALL] * 3, ("tcp", "3 ranks are on 3 hosts")),
        ("auto", "auto", ["a", "b", "c"], [MPI] * 3, ("mpi", "3 ranks are on 3 hosts")),
        ("auto", "auto", ["a", "b", "a"], [ALL] * 3, ("hybrid+tcp", "3 ranks are on 2 hosts, up to 2 on one")),
        ("auto", "auto", ["a", "b", "a"], [MPI] * 3, ("hybrid+mpi", "3 ranks are on 2 hosts, up to 2 on one")),
        ("auto", "auto", ["a", "b", "a"], [MPI, ALL, MPI], ("hybrid+tcp", "3 ranks are on 2 hosts, up to 2 on one")),
        ("auto", "tcp", ["a", "b", "a"], [MPI] * 3, ("hybrid+tcp", "3 ranks are on 2 hosts, up to 2 on one")),
        ("auto", "tcp", ["a", "b"], [MPI] * 2, ("tcp", "2 ranks are on 2 hosts")),
        ("auto", "auto", ["a", "b"] * 65, [ALL] * 130, ("tcp", "130 ranks are on 2 hosts")),
        ("auto", "auto", ["a", "b"], [GPU] * 2, ("nccl", "all 2 ranks have a GPU of their own")),
        ("auto", "auto", ["a"], [GPU], ("nccl", "all 1 ranks have a GPU of their own")),
        ("auto", "auto", ["a", "a"], [GPU, ALL], ("shm", "all 2 ranks are on one host")),
        ("tcp", "auto", ["a", "a"], [ALL, ALL], ("tcp", "it was asked for")),
        ("mpi", "auto", ["a", "a"], [MPI, MPI], ("mpi", "it was asked for")),
        ("shm", "auto", ["a"], [ALL], ("shm", "it was asked for")),
        ("hybrid", "auto", ["a", "b"], [MPI] * 2, ("hybrid+mpi", "it was asked for")),
        ("hybrid", "tcp", ["a", "b"], [MPI] * 2, ("hybrid+tcp", "it was asked for")),
        ("hybrid", "auto", ["a", "a"], [["hybrid"]] * 2, ("hybrid+mpi", "it was asked for")),
    ],
)
def test_choice(asked: str, across: str, hosts: list[str], usable: list[list[str]], expected: tuple[str, str]) -> None:
    assert choose.choose(asked, hosts, usable, across) == expected


@pytest.mark.parametrize(
    ("asked", "across", "hosts", "usable", "says"),
    [
        ("warp", "auto", ["a"], [ALL], ["'warp'", "auto, solo, shm, nccl, mpi, tcp, hybrid"]),
        ("solo", "auto", ["a", "a"], [ALL, ALL], ["serves one rank", "has 2", "--engine auto"]),
        ("shm", "auto", ["a", "b"], [ALL, ALL], ["serves one host", "a, b", "--engine auto"]),
        ("shm", "auto", ["a"] * 65, [ALL] * 65, ["at most 64", "has 65", "--engine tcp"]),
        ("tcp", "auto", ["a", "b"], [ALL, ["solo", "shm"]], ["rank 1 on b", "install a wheel of farandole"]),
        ("mpi", "auto", ["a", "b"], [MPI, ALL], ["rank 1 on b", "start it by mpirun or srun"]),
        ("hybrid", "mpi", ["a", "b"], [MPI, ALL], ["nothing can cross", "mpi: rank 1 on b", "mpirun"]),
        ("auto", "auto", ["a", "b"], [ALL, ["solo"]], ["solo:", "shm:", "tcp: rank 1 on b cannot use it"]),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(
    asked: str, across: str, hosts: list[str], usable: list[list[str]], says: list[str]
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        choose.choose(asked, hosts, usable, across)
    for words in says:
        assert words in str(caught.value)


JOBS = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.sets(st.sampled_from(list(candidates.CANDIDATES))).map(lambda s: s | {"tcp"})
    ),
    min_size=1,
    max_size=12,
)


@given(JOBS, st.sampled_from(["auto", "tcp"]), st.randoms())
def test_auto_always_finds_what_all_can_use(job: list[tuple[str, set[str]]], across: str, random: object) -> None:
    hosts, usable = [host for host, _ in job], [sorted(names) for _, names in job]
    engine, reason = choose.choose("auto", hosts, usable, across)
    parts = engine.split("+")
    assert all(part in names for part in parts for names in usable)
    assert "\n" not in reason
    assert 0 < len(reason) < 80
    most = max(Counter(hosts).values())
    assert parts[0] != "solo" or len(hosts) == 1
    assert parts[0] != "shm" or len(set(hosts)) == 1
    assert parts[0] != "hybrid" or (len(set(hosts)) > 1 and most > 1)
    random.shuffle(job)  # type: ignore[attr-defined]
    assert choose.choose("auto", [h for h, _ in job], [sorted(n) for _, n in job], across) == (engine, reason)


@given(JOBS, st.sampled_from(list(candidates.CANDIDATES)))
def test_what_was_asked_for_is_never_replaced(job: list[tuple[str, set[str]]], asked: str) -> None:
    hosts, usable = [host for host, _ in job], [sorted(names) for _, names in job]
    try:
        engine, _ = choose.choose(asked, hosts, usable)
    except UnsupportedError as error:
        engine = str(error).removeprefix("engine ").partition(" was asked for")[0]
    assert choose.base(engine) == asked


def _nobody(key: str, ranks: Sequence[int], payload: bytes) -> list[bytes]:
    raise AssertionError("nobody is asked")


def test_engines_are_not_usable_without_what_they_need() -> None:
    def find(module: str) -> object | None:
        return None if module in ("torch", "mpi4py") else module

    assert candidates.usable(find, {"PMI_RANK": "0"}) == ["solo", "shm", "tcp", "hybrid"]
    group = Group(1, (3, 5), ("a", "b"), 1, "test")
    nobody = Rendezvous(_nobody, "test", (3, 5))
    with pytest.raises(UnsupportedError, match=r"rank 5 on b cannot use engine mpi: mpi4py is not installed; .*pip"):
        factory.make("mpi", group, nobody, find)
    with pytest.raises(UnsupportedError, match="there is no engine 'warp'; the legal names are: solo, shm, nccl, mpi"):
        factory.make("warp", group, nobody)


@pytest.mark.parametrize("variable", candidates.STARTED_BY_MPI)
def test_mpi_is_usable_where_an_mpi_started_the_process(variable: str) -> None:
    def find(module: str) -> object:
        return module

    mpi = candidates.CANDIDATES["mpi"]
    assert mpi.lack(find, {}) == "no MPI has started this process"
    assert mpi.cure(find) == "start it by mpirun or srun"
    assert mpi.lack(find, {variable: "1"}) == ""
    assert "farandole run" in mpi.lack(find, {variable: "1", "FARANDOLE_LAUNCHED": "1"})


def test_a_native_core_that_is_missing_comes_by_no_extra() -> None:
    for name in ("shm", "mpi", "tcp", "hybrid"):
        assert "a wheel of farandole" in candidates.CANDIDATES[name].cure(lambda _: None, {"PMI_RANK": "0"})


@pytest.mark.parametrize(
    ("gpus", "variables", "lacks"),
    [
        (0, {}, "no NVIDIA GPU"),
        (2, {}, ""),
        (2, {"FARANDOLE_LOCAL_RANK": "1"}, ""),
        (2, {"FARANDOLE_LOCAL_RANK": "2"}, "none of the 2 GPUs is left for local rank 2"),
        (2, {"FARANDOLE_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}, ""),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, "none of the 0 GPUs"),
    ],
)
def test_nccl_needs_a_gpu_for_each_rank(
    gpus: int, variables: dict[str, str], lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(gpus):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    monkeypatch.setattr(candidates, "GPUS", tmp_path if gpus else tmp_path / "none")
    monkeypatch.setattr(candidates, "torch_has_cuda", lambda: True)
    found = candidates.CANDIDATES["nccl"].lack(lambda module: module, variables)
    assert lacks in found
    assert bool(lacks) == bool(found)


def test_the_remedy_for_nccl_is_that_for_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cure(has_torch: bool = True, **variables: str) -> str:
        return candidates.CANDIDATES["nccl"].cure(lambda module: module if has_torch else None, variables)

    monkeypatch.setattr(candidates, "GPUS", tmp_path / "gpus")
    monkeypatch.setattr(candidates, "torch_has_cuda", lambda: True)
    assert cure() == cure(has_torch=False) == "start it on hosts with one for each rank"
    (tmp_path / "gpus" / "0000:00:00.0").mkdir(parents=True)
    assert cure() == ""
    assert "pip install" in cure(has_torch=False)
    assert cure(FARANDOLE_LOCAL_RANK="1") == "start one rank per GPU"
    assert cure(CUDA_VISIBLE_DEVICES="") == "CUDA_VISIBLE_DEVICES hides them: unset it"
    monkeypatch.setattr(candidates, "torch_has_cuda", lambda: False)
    assert "get-started" in cure()


def test_looking_for_engines_imports_no_framework() -> None:
    code = (
        "import sys; from farandole.engines import candidates; candidates.usable(); "
        "sys.exit(bool({'torch', 'mpi4py'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
