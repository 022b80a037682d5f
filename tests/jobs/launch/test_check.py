"""``farandole check``: complete, readable at 80 columns, and honest about what is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farandole.launch.tools import check
from farandole.launch.tools.advice import Here

PIP = "/venv/bin/python -m pip install"


def here(path: Mapping[str, str] | None = None, modules: tuple[str, ...] = ("pip",), **given: Any) -> Here:
    """An environment in ``/venv`` and programs on the ``PATH``, which need not be of that."""
    usual = {"python": "/venv/bin/python", "folders": ("/venv/bin",), "checkout": "", "variables": {}}
    which = (path or {}).get
    return Here(which=which, find=lambda name: name if name in modules else None, **{**usual, **given})


def venv(folder: Path) -> dict[str, Any]:
    """The same in a folder that is there."""
    return {"python": f"{folder}/python", "folders": (str(folder),)}


def script(path: Path, python: Path | str) -> str:
    """A script as pip writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{python}\n")
    path.chmod(0o755)
    return str(path)


def found(name: str, there: Here, **versions: str) -> str:
    """The row of a name, as the table has it."""
    findings = check.examine(lambda package: versions.get(package.replace("-", "_"), ""), there)
    [row] = [each for each in findings if each.name == name]
    return f"{'yes' if row.usable else 'no'} {row.detail}" + (f"; {row.remedy}" if row.remedy else "")


def test_the_table_reads_well_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.report(check.examine()) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for words in ("engines usable here", "frameworks usable here", "launchers usable here", "shm         yes"):
        assert words in text


def test_what_is_missing_comes_with_reason_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    versions = {"keras": "3.1", "mxnet": "1.9.1"}
    findings = check.examine(lambda package: versions.get(package, ""), here())
    assert check.report(findings) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "shm no the native core farandole.native.core is not built; install a wheel of farandole" in text
    assert f"torch no torch is not installed; type: {PIP} 'farandole[torch]'" in text
    assert "keras no Keras 3.1 takes the backend tensorflow, which is not installed; install one of" in text
    assert "mxnet yes MXNet 1.9.1" in text
    assert "farandole.jax" not in text


def test_no_advice_needs_the_shell_to_be_in_the_environment() -> None:
    findings = check.examine(lambda _: "", here({"ssh": "/bin/ssh"}))
    rows = [f"{row.detail}; {row.remedy}" for row in findings]
    bare = re.compile(r"(?<!-m )\b(pip install|farandole run -|farandole horovod)|(?<!/)\bpython (-m|train)")
    assert not [row for row in rows if bare.search(row)]
    assert len([row for row in rows if PIP in row]) >= 4


def test_pip_is_that_of_the_environment(tmp_path: Path) -> None:
    bin_ = tmp_path / "venv" / "bin"
    own, other = script(bin_ / "pip", bin_ / "python"), script(tmp_path / "pip", "/usr/bin/python3")
    assert here({"pip": own}, **venv(bin_)).typed("pip install a") == "pip install a"
    assert here({"pip": other}, **venv(bin_)).typed("pip install a") == f"{bin_}/python -m pip install a"
    assert (
        here({"uv": "/bin/uv"}, (), **venv(bin_)).typed("pip install a") == f"uv pip install --python {bin_}/python a"
    )
    asked = here(checkout="/src/farandole").typed("pip install 'farandole[torch]'")
    assert asked == f"{PIP} '/src/farandole[torch]'"


def test_commands_are_short_where_they_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bin_ = tmp_path / "venv" / "bin"
    script(bin_ / "farandole", bin_ / "python")
    there = here(checkout=str(tmp_path), **venv(bin_))
    assert there.typed("farandole run --horovod") == "venv/bin/farandole run --horovod"
    assert there.typed("pip install 'farandole[mpi]'") == "venv/bin/python -m pip install '.[mpi]'"


def test_torchrun_beside_the_path_is_named_with_its_folder(tmp_path: Path) -> None:
    bin_ = tmp_path / "venv" / "bin"
    own, other = script(bin_ / "torchrun", bin_ / "python"), script(tmp_path / "torchrun", "/usr/bin/python3")
    assert found("torchrun", here({"torchrun": own}, **venv(bin_))) == "yes torchrun train.py"
    assert found("torchrun", here(**venv(bin_))) == f"yes {own} train.py, as there is no torchrun on the PATH"
    assert (
        found("torchrun", here({"torchrun": other}, **venv(bin_)))
        == f"yes {own} train.py, as {other} is another Python's"
    )


def test_torchrun_without_a_script_is_a_module_of_torch(tmp_path: Path) -> None:
    module = "yes /venv/bin/python -m torch.distributed.run train.py, as "
    other = script(tmp_path / "torchrun", "/usr/bin/python3")
    assert found("torchrun", here(modules=("torch",))) == f"{module}there is no torchrun on the PATH"
    assert found("torchrun", here({"torchrun": other}, ("torch",))) == f"{module}{other} is another Python's"
    assert found("torchrun", here({"torchrun": other})).startswith(f"no {other} is another Python's; type: {PIP}")
    assert found("torchrun", here()).startswith(f"no it is not installed; type: {PIP} 'farandole[torch]'")


def test_torch_that_nobody_has_noted_is_found() -> None:
    assert found("torch", here(modules=("torch",))).startswith("yes PyTorch")


def test_gigabytes_of_cuda_are_advised_for_gpus_only() -> None:
    assert "CUDA" not in check.torch_remedy(has_gpu=True)
    assert "pip install torch numpy --index-url" in check.torch_remedy(has_gpu=False)


def test_mpi_is_the_one_that_is_there(tmp_path: Path) -> None:
    bin_ = tmp_path / "venv" / "bin"
    own = script(bin_ / "mpirun", "/bin/bash")
    launchers = "/venv/bin/python train.py: MPI's launchers"
    assert found("mpirun", here({"mpirun": "/opt/mpi/bin/mpirun"})) == f"yes mpirun {launchers}"
    assert found("mpirun", here({"mpiexec": "/opt/mpi/bin/mpiexec"})) == f"yes mpiexec {launchers}"
    beside = found("mpirun", here(folders=(str(bin_),)))
    assert beside == f"yes {own} {launchers}, as there is no mpirun on the PATH"
    assert found("mpirun", here()) == f"no it is not installed; type: {PIP} 'farandole[mpi-wheel]'"
    assert "; load an MPI (module avail), or type: " in found("mpirun", here(variables={"MODULESHOME": "/opt/lmod"}))


@pytest.mark.parametrize(
    ("manager", "advice"),
    [
        ("apt-get", "type: apt-get install openssh-client"),
        ("dnf", "type: dnf install openssh-clients"),
        ("apk", "install the client of OpenSSH"),
    ],
)
def test_ssh_comes_by_the_package_manager_that_is_there(manager: str, advice: str) -> None:
    assert found("ssh", here({manager: f"/usr/bin/{manager}"})) == f"no it is not installed; {advice}"


@pytest.mark.parametrize(
    ("is_known", "error", "release", "remedy"),
    [
        (True, None, "6.1.0-13-amd64", ""),
        (False, None, "4.18.0-553.el8", "use Linux 5.3 or newer"),
        (False, None, "6.1.0-13-amd64", "use one that was built on Linux 5.3 or newer"),
        (True, OSError(38, "Function not implemented"), "3.10.0-1160.el7", "use Linux 5.3 or newer"),
        (True, OSError(1, "Operation not permitted"), "5.15.0", "let the container's seccomp profile allow it"),
    ],
)
def test_what_keeps_workers_from_being_waited_for(
    is_known: bool, error: OSError | None, release: str, remedy: str
) -> None:
    lack, advice = check.pidfd_lack(is_known, error, release)
    assert (bool(lack), advice) == (bool(remedy), remedy)


def test_keras_is_usable_with_the_backend_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text('{"floatx": "float32", "backend": "jax"}')
    by_file, by_variable = {"KERAS_HOME": str(tmp_path)}, {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    nobody = {"KERAS_HOME": str(tmp_path / "none")}
    assert found("keras", here(variables=by_file), keras="3.15", jax="0.10").startswith("yes")
    assert found("keras", here(variables=by_variable), keras="3.15", torch="2.13").startswith("yes")
    assert found("keras", here(variables=nobody), keras="3.15", tensorflow_cpu="2.21").startswith("yes")
    assert found("keras", here(variables=nobody), keras="3.15", torch="2.13").endswith("; set KERAS_BACKEND=torch")
    other = found("keras", here(variables={"KERAS_BACKEND": "openvino"}), keras="3.15", torch="2.13")
    assert other.startswith("no Keras 3.15 takes the backend openvino, which farandole.keras does not serve")


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("tensorflow-cpu", "2.21.0", "graphs: native"),
        ("tensorflow", "2.15.1", "graphs: tf.numpy_function.* none of 2.16 to 2.21"),
    ],
)
def test_the_operation_of_tensorflows_graphs_is_told(package: str, version: str, words: str) -> None:
    findings = check.examine(version_of=lambda asked: version if asked == package else "")
    [found] = [each for each in findings if each.name == "tensorflow"]
    assert found.usable
    assert re.search(rf"^TensorFlow {re.escape(version)}, farandole.tensorflow; operation of {words}", found.detail)


def test_json_is_for_programs() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "farandole", "check", "--json"], capture_output=True, text=True, check=True
    )
    report = json.loads(found.stdout)
    assert {"kind": "engine", "name": "solo", "usable": True, "detail": "jobs of one rank", "remedy": ""} in report[
        "findings"
    ]
    assert {f["kind"] for f in report["findings"]} == {"engine", "framework", "launcher"}
