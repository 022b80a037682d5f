"""The shape of the house: who may import whom (tests/floors.toml), and how long things may grow."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE, WORKBENCH = ROOT / "src" / "farandole", ROOT / "workbench"
FILE_LINES, CLASS_LINES, FUNCTION_LINES = 600, 350, 40
LONG_CLASSES = {
    "runtime/collectives/ops.py Ops": 394,  # Horovod's functions with their signatures and documentation: a table
    "settings.py Settings": 369,  # the table of all knobs
}
"""Longer ones, and how long they may be. This list only shrinks."""

MODULES = sorted(PACKAGE.rglob("*.py"))
TOOLS = sorted(WORKBENCH.rglob("*.py"))
FOLDERS = ("src", "workbench", "benchmarks", "examples", "docs", "tests")
PYTHON = sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.py") if p.parent.name not in ("scripts", "talks_2018"))
"""Ours; scripts that tests run, and those of the talks, are written as users write them."""
NATIVE = sorted(p for suffix in ("hpp", "cpp") for p in (ROOT / "native").rglob(f"*.{suffix}"))


@cache
def floors() -> dict[str, tuple[int, str]]:
    """Room below ``src/farandole`` (``control/``, ``errors.py``) to floor (``4b``)."""
    found: dict[str, tuple[int, str]] = {}
    for floor in tomllib.loads((ROOT / "tests" / "floors.toml").read_text())["floor"]:
        number = re.fullmatch(r"(\d+)([a-z]?)", floor["number"])
        assert number, floor
        assert all((floor["name"], floor["holds"])), floor
        for room in floor["rooms"]:
            assert room not in found, f"{room} stands on two floors in tests/floors.toml"
            found[room] = int(number[1]), number[2]
    return found


def room(path: Path) -> str:
    """The room of a module's file: the longest entry of the table that is a prefix of it."""
    name = path.relative_to(PACKAGE).as_posix()
    rows = [entry for entry in floors() if name == entry or (entry.endswith("/") and name.startswith(entry))]
    assert rows, f"src/farandole/{name} stands on no floor: give it one in tests/floors.toml"
    return max(rows, key=len)


def may_import(path: Path, other: Path) -> bool:
    """Rooms see those of the floors below. Files that are rooms of their own share their floor."""
    mine, theirs = room(path), room(other)
    if mine == theirs or floors()[theirs] < floors()[mine]:
        return True
    return floors()[theirs] == floors()[mine] and not theirs.endswith("/")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax of a file, outermost first."""
    return tuple(ast.walk(ast.parse(path.read_text(), str(path))))


@pytest.fixture(scope="module", autouse=True)
def forgets_syntax() -> Iterator[None]:
    """Free the nodes of all files, a million objects, which would slow every garbage collection of later tests."""
    yield
    nodes.cache_clear()
    imports.cache_clear()


@cache
def file_of(dotted: str) -> Path | None:
    """The file of a module of ours, or ``None``."""
    bases = (base / Path(*dotted.split(".")) for base in (ROOT / "src", ROOT))
    candidates = (file for base in bases for file in (base.with_suffix(".py"), base / "__init__.py"))
    return next((c for c in candidates if c.is_file()), None)


@cache
def imports(path: Path, *, type_only: bool = False) -> list[tuple[int, Path]]:
    """Line and file of every module of ours that ``path`` imports, inside functions too, and ``type_only`` if asked."""
    found: list[tuple[int, Path]] = []
    checked_only = {
        id(child)
        for node in nodes(path)
        if not type_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in nodes(path):
        if id(node) in checked_only:
            continue
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the full name"
            targets = [_submodule_or_module(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for target in targets:
            file = file_of(target)
            if file and file != path:
                found.append((node.lineno, file))
    return found


def _submodule_or_module(module: str, name: str) -> str:
    dotted = f"{module}.{name}"
    compiled = (ROOT / "src" / Path(*dotted.split("."))).with_suffix(".pyi").exists()  # the native core: on no floor
    return dotted if file_of(dotted) or compiled else module


def test_files_import_only_from_their_room_or_below() -> None:
    breaches = [
        f"{path}:{line} in {room(path)} imports {file.relative_to(PACKAGE)}"
        for path in MODULES
        for line, file in imports(path)
        if file.is_relative_to(PACKAGE) and not may_import(path, file)
    ]
    assert not breaches, "\n".join(breaches)


FRONT_DOORS = {"__init__.py", "launch/__init__.py", "tensorflow/optimizer.py"}
"""Files that fetch a name of a higher floor when a script first asks for it: ``run``, ``launch``, Keras's optimizer."""


def test_nothing_is_imported_from_above_by_a_string() -> None:
    breaches = []
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
                name = node.args[0]
                file = file_of(name.value) if isinstance(name, ast.Constant) else None
                if file is not None and path.relative_to(PACKAGE).as_posix() not in FRONT_DOORS:
                    breaches += [] if may_import(path, file) else [f"{path}:{node.lineno} imports {file}"]
    assert not breaches, "\n".join(breaches)


def test_no_public_alias_hides_a_name_of_typing() -> None:
    found = [
        f"{path}:{node.lineno} {node.target.id}"
        for path in (*MODULES, *TOOLS)
        for node in nodes(path)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and hasattr(typing, node.target.id)
    ]
    assert not found, "\n".join(found)


def test_the_package_knows_nothing_of_the_workbench() -> None:
    """Not even by a name in a command line: it is in no wheel."""
    known = {*MODULES}
    breaches = [
        f"{path}:{line} imports {file}" for path in MODULES for line, file in imports(path) if file not in known
    ]
    breaches += [f"{path} speaks of the workbench" for path in MODULES if "workbench" in path.read_text()]
    assert not breaches, "\n".join(breaches)


def test_the_workbench_stands_on_the_package_alone() -> None:
    known = {*MODULES, *TOOLS}
    breaches = [f"{path}:{line} imports {file}" for path in TOOLS for line, file in imports(path) if file not in known]
    assert not breaches, "\n".join(breaches)


def test_no_import_circles() -> None:
    graph = {path: {file for _, file in imports(path, type_only=True)} for path in (*MODULES, *TOOLS)}
    done: set[Path] = set()

    def visit(path: Path, trail: tuple[Path, ...]) -> None:
        if path in trail:
            circle = [p.relative_to(ROOT).as_posix() for p in (*trail[trail.index(path) :], path)]
            pytest.fail("import circle: " + " -> ".join(circle))
        if path not in done:
            for following in sorted(graph.get(path, ())):
                visit(following, (*trail, path))
            done.add(path)

    for path in graph:
        visit(path, ())


def test_every_row_of_the_table_exists() -> None:
    missing = [entry for entry in floors() if not (PACKAGE / entry).exists()]
    assert floors()
    assert not missing


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in PYTHON + NATIVE}
    assert not {str(path): length for path, length in lengths.items() if length > FILE_LINES}


def test_no_class_is_too_long() -> None:
    lengths = {
        f"{path.relative_to(base).as_posix()} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for base, paths in ((PACKAGE, MODULES), (ROOT, TOOLS))
        for path in paths
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    }
    long = {name: length for name, length in lengths.items() if length > CLASS_LINES}
    assert not {name: length for name, length in long.items() if length > LONG_CLASSES.get(name, CLASS_LINES)}
    assert not LONG_CLASSES.keys() - long.keys(), "these are short enough now: take them off the list"


def code_lines(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many lines a function has, without its docstring and the lines that are comments alone."""
    end = node.end_lineno or node.lineno
    remarks = sum(line.lstrip().startswith("#") for line in lines_of(path)[node.lineno - 1 : end])
    return end - node.lineno + 1 - docstring_lines(node) - remarks


@cache
def lines_of(path: Path) -> list[str]:
    """The text of a file."""
    return path.read_text().splitlines()


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many lines of a function are its documentation."""
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def test_no_public_class_name_stands_for_two_things() -> None:
    """But in the package named ``horovod``, whose names are Horovod's."""
    found: dict[str, list[str]] = {}
    for path in (*MODULES, *TOOLS):
        if "compat" not in path.parts:
            for node in nodes(path):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    riddle = re.compile(r"(What|Who|Whoever|Whom|Those|These|Once|Where|When|How|Which|It|They|That|All that|As)\b")
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {text.splitlines()[0]}"
        for path in (*MODULES, *TOOLS)
        for node in nodes(path)
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) and riddle.match(text)
    ]
    assert not found, "\n".join(found)


def test_functions_are_short_and_typed() -> None:
    faults = [fault for path in PYTHON for fault in faults_of_functions(path)]
    assert not faults, "\n".join(faults)


def faults_of_functions(path: Path) -> Iterator[str]:
    """Every function that is too long or lacks types."""
    for node in nodes(path):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = code_lines(path, node)
        if length > FUNCTION_LINES:
            yield f"{path}:{node.lineno} {node.name} is {length} lines long"
        everything = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        bare = [a.arg for a in everything if a and a.annotation is None and a.arg not in ("self", "cls", "mcs")]
        if bare or node.returns is None:
            yield f"{path}:{node.lineno} {node.name} lacks types: {', '.join([*bare, 'return'])}"


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has imported after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_farandole_imports_no_framework() -> None:
    assert not {"torch", "tensorflow", "keras", "jax", "numpy"} & modules_after("import farandole")


def test_a_framework_imports_no_other() -> None:
    assert not {"tensorflow", "keras", "jax"} & modules_after("import farandole.torch")
    assert not {"tensorflow", "keras", "jax", "torch"} & modules_after("import farandole.numpy")
    if importlib.util.find_spec("jax"):
        assert not {"tensorflow", "keras", "torch", "optax"} & modules_after("import farandole.jax")
