"""Checks with other versions of TensorFlow, JAX and ipykernel, and with libraries that build on ours or run beside it.

    make versions                                       # all of them, and MXNet: 10 GB, and 90 minutes
    make versions ONLY="tensorflow-2.16 jax-0.5"        # some

Environments are kept in ``build/versions``, and reused. Each gets one wheel of Farandole, built once; environments of
ipykernel get only ipykernel, and use this environment for the rest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "versions"
TOOLS = ["pytest>=8.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "psutil>=6", "scikit-learn>=1.5", "ml_dtypes"]
OVERLAY = """\
import pathlib, sys, sysconfig
own = pathlib.Path(sysconfig.get_path("purelib"), "below.pth")
own.write_text(f"import site; site.addsitedir({sys.argv[1]!r})\\n")
"""
CHECKOUT_ON_PATH = """\
import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "checkout.pth").write_text(sys.argv[1])
"""


@final
@dataclass(frozen=True)
class PinnedPackages:
    """Packages of an environment, the tests that run there, and their selection by pytest's ``-k``.

    If it ``is_overlay``, the packages precede those of this environment. ``alone`` are installed without their
    requirements, such as another build of PyTorch.
    """

    packages: Sequence[str]
    tests: Sequence[str]
    chosen: str = ""
    is_overlay: bool = False
    alone: Sequence[str] = ()


def _tensorflow(tensorflow: str, keras: str) -> PinnedPackages:
    packages = [f"tensorflow-cpu=={tensorflow}", f"keras=={keras}"]
    return PinnedPackages(
        packages,
        ["tests/frameworks/tensorflow", "tests/nightly/tensorflow", "tests/frameworks/graphs", "tests/nightly/keras"],
        "not torch and not jax and not scripts_of_horovod",
    )


def _jax(jax: str, optax: str) -> PinnedPackages:
    return PinnedPackages([f"jax=={jax}", f"optax=={optax}"], ["tests/frameworks/jax", "tests/frameworks/graphs"])


def _ipykernel(version: str) -> PinnedPackages:
    return PinnedPackages([f"ipykernel=={version}"], ["tests/nightly/notebooks"], is_overlay=True)


ENVIRONMENTS: Mapping[str, PinnedPackages] = {
    "tensorflow-2.16": _tensorflow("2.16.2", "3.5.0"),
    "tensorflow-2.18": _tensorflow("2.18.1", "3.8.0"),
    "tensorflow-2.20": _tensorflow("2.20.0", "3.11.3"),
    "jax-0.5": _jax("0.5.3", "0.2.4"),
    "jax-0.6": _jax("0.6.2", "0.2.5"),
    "ipykernel-6.31": _ipykernel("6.31.0"),
    "ipykernel-7.3": _ipykernel("7.3.0"),
    "ipykernel-7.4": _ipykernel("7.4.0"),
    "deephyper-0.13": PinnedPackages(
        ["deephyper>=0.13,<0.14", "optuna>=5,<6"], ["tests/nightly/search/test_deephyper.py"]
    ),
    "torch-libraries": PinnedPackages(
        [
            "torch==2.13.0",
            "lightning-fabric>=2.6,<3",
            "accelerate>=1.15,<2",
            "deepspeed>=0.19.8,<0.20",
            "mpi4py>=4.0",
            "mpich>=4.2",
            "scipy>=1.11",
            "pillow",
            "requests",
        ],
        ["tests/nightly/torch_distributed/test_examples.py"],
        alone=["heat==1.8.0", "torchvision==0.15.2"],  # they require PyTorch with CUDA
    ),
}


def pip(python: Path, *arguments: str) -> None:
    """Run pip of an environment; raises ``CalledProcessError`` if it fails."""
    command = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def wheel() -> Path:
    """The wheel of this checkout, built by this interpreter's scikit-build-core."""
    folder = FOLDER / "wheel"
    for old in folder.glob("*.whl"):
        old.unlink()
    options = ["--no-deps", "--no-build-isolation", "-C", f"build-dir={FOLDER / 'native'}", "-w", str(folder)]
    pip(Path(sys.executable), "wheel", *options, str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


def prepare(name: str, built: Path | None) -> Path:
    """Make an environment, or update Farandole in it; returns its interpreter."""
    python = FOLDER / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True)
    if built is None:
        pip(python, "install", "--no-deps", *ENVIRONMENTS[name].packages)
        subprocess.run([str(python), "-c", OVERLAY, sysconfig.get_path("purelib")], check=True)
        return python
    pip(python, "install", *ENVIRONMENTS[name].packages, *TOOLS, str(built))
    pip(python, "install", "--no-deps", "--force-reinstall", str(built), *ENVIRONMENTS[name].alone)
    subprocess.run([str(python), "-c", CHECKOUT_ON_PATH, f"{ROOT}\n"], check=True)
    return python


def check(name: str, python: Path) -> bool:
    """Run the tests of an environment, and print the result."""
    environment = ENVIRONMENTS[name]
    begin = time.monotonic()
    wide = {**os.environ, "COLUMNS": "200"}  # prints whole lines
    said = subprocess.run(
        [str(python), "-m", "farandole", "check"], cwd=FOLDER, env=wide, capture_output=True, text=True, check=False
    )
    for line in said.stdout.splitlines():
        if name.partition("-")[0] in line.lower():
            print(f"{name}: {line.strip()}", flush=True)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *environment.tests]
    command += ["-k", environment.chosen] if environment.chosen else []
    variables = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    if environment.is_overlay:  # where JupyterLab and its extensions are
        share, etc = Path(sys.prefix, "share", "jupyter"), Path(sys.prefix, "etc", "jupyter")
        variables |= {"JUPYTER_PATH": str(share), "JUPYTERLAB_DIR": str(share / "lab"), "JUPYTER_CONFIG_PATH": str(etc)}
    passed = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0
    print(f"{name}: {'passed' if passed else 'FAILED'} after {time.monotonic() - begin:.0f} s", flush=True)
    return passed


def main() -> int:
    """Command line; the exit status is 1 if a version failed."""
    parser = argparse.ArgumentParser(description="run checks with other versions of what they need")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ENVIRONMENTS)} (default: all)")
    names = parser.parse_args().names or list(ENVIRONMENTS)
    unknown = set(names) - ENVIRONMENTS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(ENVIRONMENTS)}")
    built = None if all(ENVIRONMENTS[name].is_overlay for name in names) else wheel()
    failed = [
        name for name in names if not check(name, prepare(name, None if ENVIRONMENTS[name].is_overlay else built))
    ]
    print(
        f"{len(names) - len(failed)} of {len(names)} versions passed" + "".join(f"; {name} failed" for name in failed)
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
