"""Run all checks that need a GPU, within nine minutes, and write one report.

python -m workbench.gpu --report out/gpu.md
python -m workbench.gpu --dry-run               # the same commands on the CPU, where there is no GPU
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import final

ROOT = Path(__file__).resolve().parents[2]
ALL_S = 540.0
TAIL_LINES = 40


@final
@dataclass(frozen=True)
class GpuStep:
    """A command of the report, and its time limit."""

    name: str
    command: Sequence[str]
    limit_s: float
    needs_gpu: bool = False
    needs_module: str = ""


@final
@dataclass(frozen=True)
class StepResult:
    """Outcome of a step; ``output`` is the end of its output."""

    name: str
    outcome: str
    seconds: float
    output: str


def steps(device: str) -> list[GpuStep]:
    """All steps, the most informative first, because time may run out."""
    python, run = sys.executable, [sys.executable, "-m", "farandole", "run"]
    checks = [python, "-m", "workbench.gpu.checks", device]
    nccl = ["--engine", "nccl"] if device == "cuda" else []
    return [
        GpuStep("device", ["nvidia-smi"], 20, needs_gpu=True),
        GpuStep("farandole check", [python, "-m", "farandole", "check"], 30),
        GpuStep("farandole.torch, 1 rank on the engine nccl", [*run, "-np", "1", *nccl, *checks, "torch"], 90),
        GpuStep("farandole.torch, 2 ranks that share a GPU", [*run, "-np", "2", *checks, "torch"], 90),
        GpuStep("torch.distributed, 2 ranks", [*run, "-np", "2", *checks, "distributed"], 60),
        GpuStep("torch.distributed, cpu:farandole,cuda:nccl", [*run, "-np", "1", *checks, "mixed"], 60),
        GpuStep(
            "contract of the engine nccl", [python, "-m", "pytest", "-q", "tests/nightly/engines/test_nccl.py"], 150
        ),
        GpuStep("an error that stays in the device", [*run, "-np", "1", *checks, "sticky"], 60, needs_gpu=True),
        GpuStep("farandole.jax, 2 ranks", [*run, "-np", "2", *checks, "jax"], 60, needs_module="jax"),
        GpuStep(
            "farandole.tensorflow, 2 ranks", [*run, "-np", "2", *checks, "tensorflow"], 90, needs_module="tensorflow"
        ),
        GpuStep("a step beside DDP, 1 rank", [*run, "-np", "1", *checks, "speed"], 90),
    ]


def played(step: GpuStep, left_s: float) -> StepResult:
    """Run a step within its limit and the time that is left."""
    begin = time.monotonic()
    told = {**os.environ, "OMP_NUM_THREADS": "4", "FARANDOLE_LOG_LEVEL": "warning"}
    try:
        done = subprocess.run(
            step.command, cwd=ROOT, env=told, text=True, timeout=min(step.limit_s, left_s), check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        outcome, output = "passed" if done.returncode == 0 else f"exit {done.returncode}", done.stdout
    except subprocess.TimeoutExpired as late:
        outcome, output = f"not done after {late.timeout:.0f} s", _text(late.stdout)
    except FileNotFoundError as missing:
        outcome, output = "missing", str(missing)
    tail = "\n".join(output.splitlines()[-TAIL_LINES:])
    return StepResult(step.name, outcome, time.monotonic() - begin, tail)


def markdown(results: Sequence[StepResult], device: str) -> str:
    """The report as a page."""
    lines = [f"# Checks on {device}, {platform.node()}, Python {platform.python_version()}", ""]
    lines += ["| step | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {each.name} | {each.outcome} | {each.seconds:.1f} |" for each in results]
    for each in results:
        lines += ["", f"## {each.name}: {each.outcome}", "", "```text", each.output, "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Command line; the exit status is 1 if a step has failed."""
    parser = argparse.ArgumentParser(prog="python -m workbench.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, default=Path("out/gpu.md"), help="page to write (and .json beside it)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, without what needs a GPU")
    chosen = parser.parse_args()
    device, begin = "cpu" if chosen.dry_run else "cuda", time.monotonic()
    results: list[StepResult] = []
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    for step in steps(device):
        left_s = ALL_S - (time.monotonic() - begin)
        if step.needs_gpu and chosen.dry_run:
            results.append(StepResult(step.name, "skipped: it needs a GPU", 0.0, " ".join(step.command)))
        elif step.needs_module and find_spec(step.needs_module) is None:
            results.append(StepResult(step.name, f"skipped: {step.needs_module} is not installed", 0.0, ""))
        elif left_s < 5:
            results.append(StepResult(step.name, "not begun: the nine minutes are over", 0.0, ""))
        else:
            results.append(played(step, left_s))
        print(f"{results[-1].name}: {results[-1].outcome} ({results[-1].seconds:.1f} s)", flush=True)
        chosen.report.write_text(markdown(results, device))  # after each step: the machine may be lost before the last
        chosen.report.with_suffix(".json").write_text(json.dumps(list(map(asdict, results)), indent=1))
    print(f"written: {chosen.report}")
    return int(any(not each.outcome.startswith(("passed", "skipped")) for each in results))


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


if __name__ == "__main__":
    sys.exit(main())
