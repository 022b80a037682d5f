"""``farandole horovod install``: every Python of an environment finds the package, and package managers believe it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import farandole
from farandole.launch.tools import horovod_install
from farandole.launch.tools.horovod_install import COMMAND, FOLDER, PTH, InstallScheme, install, uninstall
from tests.support.compat.environment import PACKAGE, Env

FOUND = "import horovod, importlib.metadata as m; print(horovod.__version__, m.version('horovod'), horovod.__file__)"


@pytest.fixture
def env(tmp_path: Path) -> Env:
    return Env(tmp_path / "env")


def test_installed_and_uninstalled(env: Env) -> None:
    assert "means nothing here" in env.horovod("status", code=1)
    assert f"wrote {env.packages / FOLDER}" in env.horovod("install")
    assert "installed already" in env.horovod("install")
    expected = f"0.28.1 0.28.1 {PACKAGE}/compat/site/horovod/__init__.py\n"
    assert env.run("python", "-c", FOUND) == expected
    assert env.run("python", "-c", FOUND, variables={"PYTHONPATH": "src"}) == expected
    assert "means Farandole here" in env.horovod("status")
    assert "horovod yes 'import horovod' means Farandole here" in " ".join(
        env.run("python", "-m", "farandole", "check").split()
    )
    assert env.run(
        COMMAND, "-np", "2", "python", "-c", "print(1)", variables={"PATH": f"{env.folder}/bin:{os.environ['PATH']}"}
    ) in (
        "[0]<stdout>:1\n[1]<stdout>:1\n",
        "[1]<stdout>:1\n[0]<stdout>:1\n",
    )
    assert "0.28.1" in env.run("python", "-m", "horovod.runner.launch", "--version")
    assert f"removed {env.packages / PTH}" in env.horovod("uninstall")
    assert env.files() == env.before
    assert "nothing was installed" in env.horovod("uninstall")
    assert "No module named 'horovod'" in env.run("python", "-c", FOUND, code=1)


def test_pip_takes_it_for_installed_and_can_remove_it(env: Env) -> None:
    pytest.importorskip("pip")
    env.horovod("install")
    asked = ("install", "--no-index", "--no-build-isolation", "--dry-run", "horovod[pytorch]>0.24,<0.29")
    assert "Requirement already satisfied: horovod" in env.run("python", "-m", "pip", *asked)
    assert "0.28.1" in env.run("python", "-m", "pip", "show", "horovod")
    env.run("python", "-m", "pip", "uninstall", "--yes", "horovod")
    assert env.files() == env.before


def test_a_variable_does_it_for_one_process(env: Env) -> None:
    """The wheel puts the file beside the package; here it comes from the sources."""
    (env.packages / "zzz-horovod.pth").write_text((PACKAGE.parent / "farandole-horovod.pth").read_text())
    for value in ("1", "true"):
        assert str(PACKAGE) in env.run(
            "python", "-c", FOUND, variables={"FARANDOLE_HOROVOD": value, "PYTHONPATH": "src"}
        )
        assert str(PACKAGE) in env.run("python", "-I", "-c", FOUND, variables={"FARANDOLE_HOROVOD": value})
    for value in ("0", "false"):
        assert "No module named" in env.run("python", "-c", FOUND, code=1, variables={"FARANDOLE_HOROVOD": value})


def test_the_wheel_has_the_file_that_the_variable_acts_on() -> None:
    lists = PACKAGE.parent.parent / "CMakeLists.txt"
    if not lists.exists():
        pytest.skip("these are no sources")
    assert "install(FILES src/farandole-horovod.pth DESTINATION .)" in lists.read_text()


def test_a_real_horovod_is_never_touched(env: Env) -> None:
    package = env.packages / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.27.0'")
    assert f"a package horovod in {package}/__init__.py is installed" in env.horovod("install", code=2)
    folder = env.packages / "horovod-0.27.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.27.0\n")
    before = env.files()
    said = env.horovod("install", code=2)
    assert f"Horovod 0.27.0 in {env.packages} is installed, and stays as it is" in said
    assert "farandole run --horovod" in said
    assert "nothing was installed" in env.horovod("uninstall")
    assert f"means Horovod 0.27.0 in {env.packages} here" in env.horovod("status", code=1)
    assert env.files() == before


@pytest.fixture
def scheme(tmp_path: Path) -> InstallScheme:
    return InstallScheme(str(tmp_path / "lib"), str(tmp_path / "bin"))


@pytest.mark.parametrize("lost", [PTH, COMMAND, FOLDER, f"{FOLDER}/RECORD"])
def test_what_was_interrupted_is_finished_or_removed(scheme: InstallScheme, lost: str) -> None:
    def spoil() -> None:
        path = Path(scheme.path(lost))
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    wrote = install(scheme)
    assert sorted(wrote) == sorted(scheme.path(name) for name in (PTH, COMMAND, FOLDER))
    assert install(scheme) == []
    spoil()
    assert scheme.path(lost.partition("/")[0]) in install(scheme)
    assert install(scheme) == []
    spoil()
    uninstall(scheme)
    assert not Path(scheme.path(FOLDER)).exists()
    assert os.listdir(scheme.scripts) == []


def test_strange_files_stay(scheme: InstallScheme) -> None:
    os.makedirs(scheme.scripts)
    Path(scheme.path(COMMAND)).write_text("#!/bin/sh\nexec theirs\n")
    with pytest.raises(farandole.UsageError, match="Farandole has not written it"):
        install(scheme)
    assert uninstall(scheme) == []
    assert Path(scheme.path(COMMAND)).exists()


def test_where_nothing_can_be_written_it_says_what_to_do(tmp_path: Path) -> None:
    for folder in ("/proc/self/none", "/sys/none"):
        with pytest.raises(farandole.UsageError, match=r"FARANDOLE_HOROVOD=1 for a job, or install for yourself"):
            install(InstallScheme(folder, str(tmp_path)))


def test_ones_own_folder_counts_for_nothing_in_a_virtual_environment(env: Env) -> None:
    assert "a virtual environment never does" in env.horovod("install", "--user", code=2)


def test_ones_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import site

    from farandole.launch.tools import horovod_command

    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "USER_BASE", str(tmp_path))
    monkeypatch.setattr(site, "USER_SITE", str(tmp_path / "lib"))
    scheme = horovod_command._scheme(user=True)
    assert scheme == InstallScheme(str(tmp_path / "lib"), str(tmp_path / "bin"))
    horovod_install.install(scheme)
    assert scheme.installer() == horovod_install.INSTALLER
