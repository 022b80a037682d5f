"""Models with a fact sheet: they come back as they were, what was damaged or is hostile is refused, and says why."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from huggingface_hub import ModelCard

from farandole import cli, models
from farandole.errors import ModelError, UsageError
from farandole.models import folder as folders
from farandole.models.sheet import STUDENT_975
from farandole.models.weights import decode, encode
from tests.support.frameworks import lean
from tests.support.launching import run_to_end
from tests.support.patience import PATIENCE_S

WORDS = "float64 float32 float16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64"

FACTS: dict[str, Any] = {
    "intro": "Land cover of patches.",
    "licence": "apache-2.0",
    "contact": ["ana@example.org"],
    "task": "image-classification",
    "methods": ["3-D CNN", "transfer | learning"],
    "hpc": "8 GPUs for 2 hours",
    "platforms": ["JUWELS"],
    "data": {"name": "EuroSAT", "digest": "ab" * 16, "samples": 27000, "location": "/data", "format": "geotiff"},
    "figures": {"f1": (0.78, 0.01), "accuracy": 0.9},
}
TREE = {
    "conv": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "b": [np.zeros(3, ml_dtypes.bfloat16), np.int64(7)],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a few numbers."""
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    models.save(tmp_path / "models" / "landcover", TREE, files=[script], seeds={"seed": 3}, **FACTS)
    return tmp_path / "models" / "landcover"


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*WORDS.split(), ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_arrays_of_all_types_come_back_bit_for_bit(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(9 * np.abs(np.random.default_rng(0).normal(size=shape))).astype(dtype)
    found = decode(encode({"a": array}, "numpy"))["a"]
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_trees_come_back_as_trees(model: Path) -> None:
    found = models.load(model)
    assert sorted(found) == ["b/0", "b/1", "conv/w"]
    back = models.load(model, into=TREE)
    assert back["b"][0].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(back["conv"]["w"], TREE["conv"]["w"])  # type: ignore[index]


def test_others_read_the_weights_and_check_the_digests(model: Path) -> None:
    """The dull oracle: PyTorch's reader of safetensors, and sha256sum."""
    from safetensors.torch import load_file

    assert load_file(model / "model.safetensors")["conv/w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=model, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()[::2]) == ["facts.json:", "model.safetensors:", "train.py:"]


def test_modules_of_pytorch_come_back_with_tied_and_half_precise_weights(tmp_path: Path) -> None:
    import torch

    def build() -> torch.nn.Module:
        first, last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        last.weight = first.weight
        return torch.nn.Sequential(first, torch.nn.BatchNorm1d(3), last).bfloat16()

    net, other = build(), build()
    models.save(tmp_path / "m", net)
    assert models.facts(tmp_path / "m").weights.framework == "pytorch"
    assert models.load(tmp_path / "m", into=other) is other
    for mine, theirs in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(ModelError, match=r"of another model: of its tensors 2 are missing \(bias, weight\)"):
        models.load(tmp_path / "m", into=torch.nn.Linear(3, 3))
    wide = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4)).bfloat16()
    before = wide.state_dict()["0.weight"].clone()
    with pytest.raises(ModelError, match=r"2.bias has the shape \[3\] and is to have \[4\]"):
        models.load(tmp_path / "m", into=wide)
    assert torch.equal(before, wide.state_dict()["0.weight"])


JAX = """
import jax
from farandole import models
tree = {"a": {"w": jax.numpy.ones((2, 2), "bfloat16")}, "s": (jax.numpy.zeros(()), jax.numpy.arange(3))}
models.save("m", tree)
back = models.load("m", into=tree)
assert jax.tree.structure(back) == jax.tree.structure(tree)
assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(back))
assert back["a"]["w"].dtype == "bfloat16"
print(models.facts("m").weights.framework)
"""

KERAS = """
import keras, numpy as np
from farandole import models
def build(units=2):
    layers = keras.layers
    return keras.Sequential([layers.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dense(units)])
first, second = build(), build()
models.save("m", first)
models.load("m", into=second)
for a, b in zip(first.get_weights(), second.get_weights()):
    np.testing.assert_array_equal(a, b)
try:
    models.load("m", into=build(5))
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("script", "backend", "said"),
    [
        (JAX, "", "jax"),
        (KERAS, "torch", "kernel has the shape [3, 2] and is to have [3, 5]"),
        (KERAS, "jax", "kernel has the shape [3, 2] and is to have [3, 5]"),
    ],
    ids=["trees of JAX", "Keras on PyTorch", "Keras on JAX"],
)
def test_weights_of_other_frameworks_come_back(script: str, backend: str, said: str, tmp_path: Path) -> None:
    """Also of a second model of Keras in one process, whose layers have other numbers."""
    variables = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", **lean("jax")}
    done = run_to_end([sys.executable, "-c", script], tmp_path, 4 * PATIENCE_S, variables)
    assert said in done.ok().stdout


# -- the card ---------------------------------------------------------------------------------------------------------


def test_the_card_says_what_the_facts_do_as_the_hubs_library_reads_it(model: Path) -> None:
    card = ModelCard.load(model / "README.md")
    assert (card.data.license, card.data.pipeline_tag, card.data.model_name) == (
        "apache-2.0",
        FACTS["task"],
        "landcover",
    )
    assert card.data.tags == ["farandole", "3-d-cnn", "transfer-learning"]
    assert [(r.metric_type, r.metric_value, r.metric_args) for r in card.data.eval_results] == [
        ("f1", 0.78, {"interval_95": 0.01}),
        ("accuracy", 0.9, None),
    ]
    assert {(r.dataset_name, r.dataset_type, r.dataset_revision) for r in card.data.eval_results} == {
        ("EuroSAT", "geotiff", "ab" * 16)
    }
    for word in ("ana@example.org", "0.78 ± 0.01", "8 GPUs", "JUWELS", "27,000", r"transfer \| learning", "seed 3"):
        assert word in card.text


def test_prose_of_a_card_may_be_edited_and_its_facts_not(model: Path) -> None:
    path = model / "README.md"
    text = path.read_text()
    path.write_text(text.replace("Land cover of patches.", "Anything.\n\n![a picture](a.png)") + "\nMore.\n")
    assert models.verify(model) == []
    edited = path.read_text()
    for one, other, said in (
        ("license: apache-2.0", "license: mit", "says license: 'mit', and the facts say 'apache-2.0'"),
        ("value: 0.78", "value: 0.98", "README.md says model-index"),
        ("| f1 |  | 0.78 ± 0.01 |", "| f1 |  | 0.98 ± 0.01 |", "the table of facts was edited: | f1 |  | 0.98"),
        ("<!-- end of the facts -->", "", "0 tables of facts"),
        ("---\n", "", "no front matter"),
    ):
        path.write_text(edited.replace(one, other))
        [problem, *_] = models.verify(model)
        assert said in problem
        with pytest.raises(ModelError, match="is refused"):
            models.load(model)
    path.write_text(edited)
    folders.update(model, models.facts(model))
    assert "More." in path.read_text()
    assert "Anything." in path.read_text()


def test_anchors_in_a_card_are_refused(model: Path) -> None:
    """A few lines of them stand for billions of values."""
    bomb = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 30))
    text = (model / "README.md").read_text()
    (model / "README.md").write_text(text.replace("---\n", f"---\nx0: &x0 [a]\n{bomb}", 1))
    assert models.verify(model) == ["README.md: its front matter has anchors, which no card needs"]


# -- what is refused --------------------------------------------------------------------------------------------------


def flip(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def fifo(model: Path) -> None:
    (model / "facts.json").unlink()
    os.mkfifo(model / "facts.json")


def hostile(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change of the weights that has right digests everywhere, as an attacker writes them."""

    def work(model: Path) -> None:
        content = change((model / "model.safetensors").read_bytes())
        facts = json.loads((model / "facts.json").read_text())
        facts["weights"] |= {"sha256": hashlib.sha256(content).hexdigest(), "nbytes": len(content)}
        (model / "model.safetensors").write_bytes(content)
        (model / "facts.json").write_text(json.dumps(facts))
        sums = [
            f"{hashlib.sha256((model / n).read_bytes()).hexdigest()}  {n}\n"
            for n in ("facts.json", "model.safetensors")
        ]
        (model / "SHA256SUMS").write_text("".join(sums))

    return work


def endless(model: Path) -> None:
    """A file of 16 TiB, none of which is on the disk, and facts that say so."""
    hostile(lambda content: content)(model)
    facts = json.loads((model / "facts.json").read_text())
    facts["weights"]["nbytes"] = 2**44 - 2**12  # the most that ext4 takes
    (model / "facts.json").write_text(json.dumps(facts))
    digest = hashlib.sha256((model / "facts.json").read_bytes()).hexdigest()
    (model / "SHA256SUMS").write_text(f"{digest}  facts.json\n{'0' * 64}  model.safetensors\n")
    os.truncate(model / "model.safetensors", 2**44 - 2**12)


def headed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(64)


def tensor(**fields: Any) -> Callable[[Path], None]:
    told = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | fields
    return hostile(lambda _: headed(json.dumps({"conv/w": told}).encode()))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit of the weights": (lambda m: flip(m / "model.safetensors"), "does not have the bytes whose digest"),
    "weights cut off": (lambda m: os.truncate(m / "model.safetensors", 50), "has 50 bytes, and the facts say"),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "model.safetensors cannot be read: No such file"),
    "longer weights": (lambda m: os.truncate(m / "model.safetensors", 2**40), "and at most"),
    "endless weights": (endless, "and at most"),
    "facts": (lambda m: flip(m / "facts.json", 20), "facts.json was edited, or is damaged"),
    "no facts": (lambda m: (m / "facts.json").unlink(), "facts.json cannot be read"),
    "the recipe": (lambda m: flip(m / "train.py"), "train.py does not have the digest"),
    "no recipe": (lambda m: (m / "train.py").unlink(), "train.py cannot be read"),
    "no card": (lambda m: (m / "README.md").unlink(), "README.md cannot be read"),
    "a card of bytes": (lambda m: (m / "README.md").write_bytes(b"\xff\xfe"), "README.md is no text"),
    "no digests": (lambda m: (m / "SHA256SUMS").write_text(""), "has no digest of facts.json, model.safetensors"),
    "a name with a path": (
        lambda m: (m / "SHA256SUMS").write_text("0" * 64 + "  ../../etc/passwd\n"),
        "no digest of a file of this folder",
    ),
    "a link": (lambda m: link(m / "model.safetensors"), "model.safetensors is a link"),
    "a linked recipe": (lambda m: link(m / "train.py"), "train.py is a link"),
    "a FIFO": (fifo, "facts.json is no file"),
    "a huge header": (hostile(lambda _: (2**40).to_bytes(8, "little") + bytes(99)), "header is said to have"),
    "a long header": (hostile(lambda _: (2**26).to_bytes(8, "little") + bytes(2**26)), "header is said to have"),
    "no header": (hostile(lambda _: b"abc"), "no safetensors file"),
    "nothing": (hostile(lambda _: b""), "no safetensors file"),
    "a deep header": (hostile(lambda _: headed(b"[" * 200000)), "no safetensors file"),
    "a size of NaN": (tensor(shape=[float("nan")]), "no safetensors file"),
    "a negative size": (tensor(shape=[-2, -3]), "no safetensors file"),
    "sizes that overflow": (tensor(shape=[2**62, 2**62]), "no safetensors file"),
    "an offset outside": (tensor(data_offsets=[0, 2**40]), "no safetensors file"),
    "an unknown type": (tensor(dtype="PICKLE"), "types that are not known here: PICKLE"),
    "a missing tensor": (
        hostile(lambda c: encode({n: a for n, a in decode(c).items() if n != "b/0"}, "numpy")),
        "lacks the tensors b/0",
    ),
    "another tensor": (
        hostile(lambda c: encode({**decode(c), "z": np.zeros(2)}, "numpy")),
        "has the unknown tensors z",
    ),
    "another shape": (
        hostile(lambda c: encode({**decode(c), "conv/w": np.zeros(6, np.float32)}, "numpy")),
        "other types or shapes of conv/w",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_or_hostile_folder_is_refused_and_says_why(name: str, model: Path) -> None:
    damage, said = DAMAGE[name]
    damage(model)
    assert said in "; ".join(models.verify(model))
    with pytest.raises(ModelError):
        models.load(model)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the weight a has the type object"):
        models.save(tmp_path / "m", {"a": np.array([{}])})
    assert not (tmp_path / "m").exists()


def test_a_pinned_digest_is_the_model_itself(model: Path) -> None:
    digest = folders.facts(model)[0]
    models.load(model, digest=f"sha256:{digest}")
    hostile(lambda c: encode({n: np.asarray(a + np.ones_like(a)) for n, a in decode(c).items()}, "numpy"))(model)
    with pytest.raises(ModelError, match=f"its digest is .*, not {digest}"):
        models.load(model, digest=digest)


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_crash_at_any_write_leaves_nothing_or_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    for most in range(20):

        def sync(fd: int, left: Iterator[int] = iter(range(most))) -> None:  # noqa: B008 (of this round)
            if next(left, None) is None:
                raise OSError("the power is gone")
            real(fd)

        monkeypatch.setattr(os, "fsync", sync)
        try:
            models.save(tmp_path / "m", TREE, **FACTS)
        except OSError:
            assert not (tmp_path / "m").exists() or models.verify(tmp_path / "m") == []
        else:
            break
        assert [path.name for path in tmp_path.iterdir()] in ([], ["m"])
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
    assert most > 4
    assert models.verify(tmp_path / "m") == []


@pytest.mark.parametrize("swaps", [True, False])
def test_an_update_keeps_weights_prose_and_what_else_lies_there(
    swaps: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swaps:  # as NFS
        monkeypatch.setattr(folders, "exchange", lambda *_: False)
    (model / "picture.png").write_bytes(b"png")
    (model / ".git").mkdir()
    (model / ".git" / "HEAD").write_text("main")
    before = (model / "model.safetensors").stat().st_ino
    folders.update(model, models.facts(model))
    assert models.verify(model) == []
    assert (model / "model.safetensors").stat().st_ino == before
    assert (model / "picture.png").read_bytes() == b"png"
    assert (model / ".git" / "HEAD").read_text() == "main"
    assert [path.name for path in model.parent.iterdir()] == ["landcover"]


def test_models_are_shared_as_the_umask_says_and_never_overwritten(model: Path, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        models.save(tmp_path / "shared", TREE)
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "shared").iterdir()} == {0o640}
    with pytest.raises(UsageError, match="has something in it already"):
        models.save(model, TREE)


# -- the commands -----------------------------------------------------------------------------------------------------


def test_the_commands_from_a_file_of_weights_to_a_measured_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = ["models", "card", ".", "--write"]
    Path("w.safetensors").write_bytes(encode({"w": np.ones((4, 2), np.float32)}, "numpy"))
    Path("results.json").write_text(json.dumps({"seeds": {str(s): {"figures": {"mae": s / 10}} for s in range(3)}}))
    Path("facts.toml").write_text('licence = "mit"\ncontact = "ana@example.org"\nmethods = ["LSTM"]\n')
    Path("mynet.py").write_text("def forward(weights, batch):\n    return lambda: [[1.0] * 4] * batch @ weights['w']\n")
    made = ["models", "add", "zoo/a", "--weights", "w.safetensors", "--facts", "facts.toml", "--figure", "rmse=2±0.5"]
    assert cli.main([*made, "--results", "results.json"]) == 0
    assert cli.main(["models", "bench", "zoo/a", "--forward", "mynet:forward", "--batch", "8"]) == 0
    assert cli.main(["models", "bench", "zoo/a", "--forward", "mynet:forward", "--batch", "8"]) == 0
    assert cli.main(["models", "list", "zoo"]) == 0
    assert cli.main(["models", "show", "zoo/a"]) == 0
    assert cli.main(["models", "card", "zoo/a"]) == 0
    assert cli.main(["models", "verify", "zoo/a"]) == 0
    said = capsys.readouterr().out
    for words in ("samples/s in batches of 8", "rmse 2 ± 0.5", "mae 0.1 ± 0.25", "license: mit", "verified, sha256:"):
        assert words in said
    monkeypatch.chdir("zoo/a")
    assert cli.main(inside) == 2
    assert f"cd {tmp_path}/zoo" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    [machine] = models.facts("zoo/a").machines
    assert (machine.batch, machine.forward, len(machine.latency_s)) == (8, "mynet:forward", 3)
    flip(Path("zoo/a/model.safetensors"))
    assert cli.main(["models", "verify", "zoo/a"]) == 1
    assert cli.main(["models", "bench", "zoo/a"]) == 1
    assert cli.main(["models", "show", "zoo/none"]) == 1
    assert cli.main(["models", "list", "none"]) == 2
    assert cli.main([*made, "--figure", "x"]) == 2
    assert cli.main(["models", "bench", "zoo/a", "--forward", "none:forward"]) == 2


def test_the_data_and_the_run_that_made_it_are_facts(tmp_path: Path) -> None:
    from farandole import data
    from farandole.monitor.describe import describe
    from farandole.monitor.folder import MemberRecord, RunWriter

    np.save(tmp_path / "x.npy", np.zeros((5, 2), np.float32))
    source = data.arrays(tmp_path / "x.npy")
    source.manifest.save(tmp_path / "x.index")
    with RunWriter.create(tmp_path / "run", describe(["python", "train.py", "--seed", "7"])) as writer:
        writer.append(MemberRecord(0.0, 1, ["a", "a", "b"]))
    (tmp_path / "w.safetensors").write_bytes(encode({"w": np.ones(2)}, "numpy"))
    asked = [str(tmp_path / "m"), "--weights", str(tmp_path / "w.safetensors"), "--run", str(tmp_path / "run")]
    assert cli.main(["models", "add", *asked, "--data", str(tmp_path / "x.index")]) == 0
    facts = models.facts(tmp_path / "m")
    assert (facts.recipe.command, facts.recipe.workers, facts.recipe.seeds) == (
        ["python", "train.py", "--seed", "7"],
        3,
        {"--seed": "7"},
    )
    models.save(tmp_path / "n", {"w": np.ones(2)}, data=source)
    for path in ("m", "n"):
        [told] = models.facts(tmp_path / path).data
        assert (told.digest, told.samples) == (source.manifest.digest, 5)


def test_students_quantiles_are_those_of_scipy() -> None:
    from scipy.stats import t

    assert pytest.approx([t.ppf(0.975, df) for df in range(1, 31)], abs=5e-4) == STUDENT_975
