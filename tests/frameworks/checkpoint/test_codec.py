"""Values of checkpoints: each comes back as what it was, or is refused when it is saved."""

from __future__ import annotations

import enum
import io
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farandole.checkpoint import folder
from farandole.checkpoint.codec import Codec, put_together, take_apart
from farandole.errors import UsageError
from farandole.numpy.checkpoints import NumpyCodec
from farandole.torch import Checkpoints
from farandole.torch.checkpoints import TorchCodec

CODECS = pytest.mark.parametrize("codec", [TorchCodec(), NumpyCodec()], ids=["torch", "numpy"])
Pair = namedtuple("Pair", "x y")


class Color(enum.IntEnum):
    RED = 1


class Word(str, enum.Enum):
    RED = "red"


class Label(str):
    __slots__ = ()


class Tagged(dict[str, int]):
    pass


class Sub(torch.Tensor):
    pass


def there_and_back(value: Any, codec: Codec) -> Any:
    """What a file holds of it."""
    tree, _ = take_apart(value, codec.adapter)
    file = io.BytesIO()
    codec.dump({"tree": tree, "tensors": {}}, file)
    file.seek(0)
    return put_together(codec.load(file)["tree"], {})


SAME: list[Any] = [
    None, True, False, 0, -1, 10**30, 0.1, -0.0, float("inf"), float("nan"), 1j, "", "ä\ud800", b"", b"\0\xff", [], (),
    {}, [1, True, 1.0], (b"", ""), {"a": (1, [b""])}, {1: 2, "1": 3, -1: 4}, {True: 1, False: 0},
    OrderedDict(b=1, a=(2,)), Counter("abracadabra"), Counter({5: 1}), {"x": OrderedDict({1: OrderedDict()})},
    np.float64(0.1), np.float32("nan"), np.int64(-(2**62)), np.uint64(2**64 - 1), np.bool_(True), np.complex128(1j),
    np.float16(1), np.datetime64("2026-01-01"), np.longdouble(1) / 3,
]  # fmt: skip


@CODECS
@pytest.mark.parametrize("value", SAME, ids=repr)
def test_values_come_back_as_they_were(value: Any, codec: Codec) -> None:
    found = there_and_back(value, codec)
    assert type(found) is type(value)
    assert repr(found) == repr(value)  # also of what is not equal to itself, and of the order of keys
    if isinstance(value, dict):
        assert [type(key) for key in found] == [type(key) for key in value]


@CODECS
@pytest.mark.parametrize(
    "value",
    [Color.RED, Word.RED, Label("a"), Tagged(a=1), Pair(1, 2), defaultdict(int, a=1), torch.Size([1]), bytearray(b"a"),
     np.str_("a"), np.bytes_(b"a"),
     {Color.RED: 1}, {Label("a"): 1}, {np.str_("a"): 1}, {1.5: 1}, {"farandole.value": 1}, {"farandole.tensor": 0}],
    ids=repr,
)  # fmt: skip
def test_what_would_come_back_as_something_else_is_refused(value: Any, codec: Codec) -> None:
    with pytest.raises(UsageError, match=r"^state\['a'\]\[0\] (is a|has the key) "):
        take_apart({"a": [value]}, codec.adapter)


def test_the_metadata_of_a_state_dict_comes_back(tmp_path: Path) -> None:
    saved: Any = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).state_dict()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"model": saved})
        found = checkpoints.restore()
    assert found is not None
    assert type(found.state["model"]) is OrderedDict
    assert list(found.state["model"]) == list(saved)
    assert vars(found.state["model"])["_metadata"] == saved._metadata


def test_what_a_scheduler_counts_with_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # which the first optimizer sets
    optimizer = torch.optim.SGD([torch.zeros(1)])
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    found = there_and_back(scheduler.state_dict(), TorchCodec())
    assert found == scheduler.state_dict()
    assert type(found["milestones"]) is Counter


def test_a_tensor_of_a_class_that_no_file_gives_back_is_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match=r"a Sub cannot be kept: .*as_subclass\(torch.Tensor\)"):
            checkpoints.save(1, {"w": torch.ones(2).as_subclass(Sub)})
        checkpoints.save(2, {"w": torch.nn.Parameter(torch.ones(2))})
        found = checkpoints.restore()
    assert found is not None
    assert type(found.state["w"]) is torch.Tensor


def test_a_file_that_numbers_its_tensors_is_read(tmp_path: Path) -> None:
    """As those were written that are older than names of places."""
    tree = {"a": [{"farandole.tensor": 1}], "b": {"farandole.tensor": 0}}
    content = {"tree": tree, "tensors": {0: torch.zeros(2), 1: torch.ones(3)}}
    writing = folder.writing(tmp_path, 7, folder.new_mark())
    writing.mkdir()
    shard = folder.write_shard(writing, "shard-0-of-1", lambda file: torch.save(content, file))
    folder.finish(writing, folder.CheckpointManifest(7, [shard], "0"))
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore()
    assert found is not None
    assert torch.equal(found.state["a"][0], torch.ones(3))
    assert torch.equal(found.state["b"], torch.zeros(2))
