"""Wheels of packages that a machine with a GPU lacks and cannot download: ``make gpu-wheels``.

python -m workbench.gpu.wheels python3.12 build/gpu-wheels

The interpreter has that machine's version; PyTorch, JAX and NumPy are installed there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
LACKING = (
    "pyzmq>=26,<28", "msgspec>=0.19", "rich>=13", "markdown-it-py", "mdurl", "pygments", "cloudpickle>=3", "psutil>=6",
    "pytest>=8.3", "pluggy", "iniconfig", "packaging", "hypothesis>=6.100", "sortedcontainers", "optax>=0.2.3",
    "pytest-xdist>=3.6", "execnet",
)  # fmt: skip
MOST_BYTES = 60 * 2**20


def main() -> int:
    """Build our wheel and download the others; 1 if they are too large to be copied."""
    python, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
    steps = {
        "building Farandole's": [*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)],
        "downloading the others": [*pip, "download", "--no-deps", "--only-binary=:all:", "-d", str(folder), *LACKING],
    }
    with Console(stderr=True).status("") as status:
        for what, command in steps.items():
            status.update(f"{what} for {python}")
            subprocess.run(command, check=True)
    nbytes = sum(path.stat().st_size for path in folder.glob("*.whl"))
    print(f"{len(list(folder.glob('*.whl')))} wheels, {nbytes / 2**20:.1f} MiB, in {folder}")
    return int(nbytes > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
