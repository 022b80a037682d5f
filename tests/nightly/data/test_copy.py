"""``farandole run --stage SRC=DST``: copies for scripts that only know paths, and what lies in the way of them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from farandole.control.entry import entry_command
from farandole.data.staging.checksums import Checksums
from farandole.data.staging.mirror import ASIDE, MirrorFolder
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import FileEntry, list_files
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.data.tools.copy import MODULE
from farandole.errors import DataError
from tests.support.data.staging_source import stagers
from tests.support.waiting import until

FILES = {"a.bin": 5_000_000, "sub/deep/b.bin": 70_000, "sub/c.bin": 1, "empty": 0, "sub/empty": 0, ".hidden/d": 9}
SCRIPT = """
import hashlib, os, sys
found = {}
for folder, _, names in os.walk(sys.argv[1]):
    if ".farandole-stage" not in folder:
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, sys.argv[1])] = hashlib.sha256(open(path, "rb").read()).hexdigest()
print(sorted(found.items()))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    for name, size in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))
    return folder


def mirror_of(source: Path, target: Path) -> tuple[MirrorFolder, Pieces, Manifest]:
    entries = list_files(source, hidden=True)
    manifest = Manifest.of("files", str(source), entries, [Field.whole_files([each.size for each in entries])])
    pieces = Pieces.of(manifest)
    return MirrorFolder(str(target), pieces, manifest), pieces, manifest


def fill(mirror: MirrorFolder, pieces: Pieces, manifest: Manifest, piece: int) -> None:
    sums = Checksums.unknown(pieces.blocks(piece))
    data = b"".join(Path(manifest.paths[f]).read_bytes()[at : at + size] for f, at, size in pieces.extents(piece))
    sums.note(0, len(sums), memoryview(data))
    writer = mirror.begin(piece, sums, 1)
    writer.write(0, memoryview(data))
    writer.finish()


def copied(source: Path, target: Path) -> bool:
    return all((target / name).read_bytes() == (source / name).read_bytes() for name in FILES)


def test_a_script_finds_the_files_and_a_second_run_reads_none(launch: Any, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "dst"
    run = launch(2, SCRIPT, options=["--stage", f"{source}={target}"], arguments=[str(target)]).ok()
    assert len(run.lines()) == 2
    assert copied(source, target)
    assert {name for name, _ in ast.literal_eval(run.lines()[0])} == set(FILES)
    for name in FILES:
        assert (target / name).stat().st_mtime_ns == (source / name).stat().st_mtime_ns
        (source / name).chmod(0)
    again = launch(2, SCRIPT, options=["--stage", f"{source}={target}"], arguments=[str(target)]).ok()
    assert again.lines() == run.lines()


def test_a_worker_that_comes_later_does_not_take_the_copies_of_an_earlier_run(source: Path, tmp_path: Path) -> None:
    """As on a host that joins an elastic job, and has been in another one when the files were others."""
    target = tmp_path / "dst"

    def then(run: str) -> subprocess.CompletedProcess[str]:
        words = [*entry_command(MODULE), "then", run, f"{source}={target}", "--", "true"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        until(lambda: not stagers(target), "for the stager to end")
        return done

    assert then("one").returncode == 0
    assert copied(source, target)
    (source / "sub" / "c.bin").write_bytes(b"x")
    assert then("one").returncode == 0, "it is known in this run"
    other = then("two")
    assert other.returncode
    assert f"{target}/sub/c.bin is there already, and is no copy" in other.stderr
    shutil.rmtree(target)
    assert then("two").returncode == 0
    assert (target / "sub" / "c.bin").read_bytes() == b"x"


def test_what_is_in_the_way_is_named_and_stays(launch: Any, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    (target / "sub").mkdir(parents=True)
    (target / "sub" / "c.bin").write_bytes(b"mine")
    run = launch(1, SCRIPT, options=["--stage", f"{source}={target}"], arguments=[str(target)])
    assert run.code
    assert f"{target}/sub/c.bin is there already" in run.stderr
    assert "delete that, or give another folder" in run.stderr
    assert (target / "sub" / "c.bin").read_bytes() == b"mine"


def test_copies_among_what_is_copied_are_refused(launch: Any, source: Path) -> None:
    run = launch(1, SCRIPT, options=["--stage", f"{source}={source}/dst"], arguments=[str(source)])
    assert run.code
    assert "would lie among what is copied" in run.stderr
    assert not (source / "dst").exists()


def test_what_was_copied_halfway_is_completed(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    mirror, pieces, manifest = mirror_of(source, target)
    assert len(pieces) > 1
    fill(mirror, pieces, manifest, 0)
    with pytest.raises(DataError, match="another job copies into"):
        mirror_of(source, target)
    mirror.close()
    mirror, pieces, manifest = mirror_of(source, target)
    assert mirror.held() == {0}
    for piece in range(1, len(pieces)):
        fill(mirror, pieces, manifest, piece)
    assert copied(source, target)
    # A writer that was killed before a file got its name.
    (target / "a.bin").replace(target / ASIDE / "partial" / "a.bin")
    mirror.close()
    mirror, _, _ = mirror_of(source, target)
    assert copied(source, target)
    mirror.close()
    # Somebody deletes a file, as the error tells them to.
    (target / "a.bin").unlink()
    mirror, pieces, manifest = mirror_of(source, target)
    missing = set(range(len(pieces))) - mirror.held()
    assert missing
    for piece in missing:
        fill(mirror, pieces, manifest, piece)
    assert copied(source, target)
    mirror.close()


def test_after_another_boot_the_copies_are_compared(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    mirror, pieces, manifest = mirror_of(source, target)
    for piece in range(len(pieces)):
        fill(mirror, pieces, manifest, piece)
    mirror.close()
    status = (target / "a.bin").stat()
    with (target / "a.bin").open("r+b") as file:
        file.seek(3_000_000)
        file.write(bytes(100))
    os.utime(target / "a.bin", ns=(status.st_mtime_ns, status.st_mtime_ns))
    (target / ASIDE / "boot").write_text("another")
    mirror, pieces, manifest = mirror_of(source, target)
    damaged = set(range(len(pieces))) - mirror.held()
    assert len(damaged) == 1
    fill(mirror, pieces, manifest, damaged.pop())
    assert copied(source, target)
    mirror.close()


def test_a_source_that_has_changed_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    mirror, pieces, manifest = mirror_of(source, target)
    for piece in range(len(pieces)):
        fill(mirror, pieces, manifest, piece)
    mirror.close()
    (source / "sub" / "c.bin").write_bytes(b"2")
    with pytest.raises(DataError, match=r"c\.bin is there already, and is no copy .* as it is now"):
        mirror_of(source, target)
    for number in range(14):
        (source / f"{number}.new").write_bytes(b"2")
        (target / f"{number}.new").write_bytes(b"3")
    with pytest.raises(DataError) as caught:
        mirror_of(source, target)
    assert str(caught.value).startswith(f"{target}/0.new, {target}/1.new, ")
    assert f"and 3 more are there already, and are no copies of {source} as it is now: " in str(caught.value)
    assert str(caught.value).endswith(
        f"delete what was copied into {target} before, as all is copied anew, or give another folder"
    )


@pytest.mark.parametrize(
    "path", ["memory://set/../../etc/passwd", "memory://other/a", "memory://set//a", "memory://set/./a", "/set/../a"]
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    root = "memory://set" if "://" in path else "/set"
    manifest = Manifest.of("files", root, [FileEntry(path, 3, 1)], [Field.whole_files([3])])
    with pytest.raises(DataError, match="so its copy has no place"):
        MirrorFolder(str(tmp_path / "dst"), Pieces.of(manifest), manifest)


def test_folders_that_others_may_write_are_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    target.mkdir()
    target.chmod(0o1777)
    with pytest.raises(DataError, match="give a folder of your own"):
        mirror_of(source, target)
    target.chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    (target / ASIDE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="give a folder of your own"):
        mirror_of(source, target)
    (target / ASIDE).unlink()
    mirror, pieces, manifest = mirror_of(source, target)
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * 5_000_000)
    (target / ASIDE / "partial" / "a.bin").symlink_to(victim)
    [piece] = [piece for piece in range(len(pieces)) if manifest.paths[pieces.extents(piece)[0][0]].endswith("a.bin")][
        :1
    ]
    with pytest.raises(OSError, match="symbolic links"):
        fill(mirror, pieces, manifest, piece)
    assert victim.read_bytes() == b"x" * 5_000_000
    mirror.close()
