"""Write the parts of the reference that the code already says: `python docs/generate.py` (a test checks it was run).

Between ``<!-- generated: NAME -->`` and ``<!-- end -->`` in a page stands what the function NAME of this file returns.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from farandole import errors
from farandole.collective import ReduceOp
from farandole.launch.leases import limits
from farandole.runtime.session.process_sets import ProcessSet
from farandole.settings import KNOBS, PREFIX, Settings

DOCS = Path(__file__).resolve().parent
STEPS = ("Flip", "Roll", "Rotate90", "Rotate", "Crop", "GaussianNoise", "Normalize", "MixUp")
MARK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings() -> str:
    """Every knob: its names, its default, what it does."""
    rows = ["| name | command line | environment | default | what |", "|---|---|---|---|---|"]
    for name, knob in KNOBS.items():
        default = getattr(Settings(), name)
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
        variables = [PREFIX + name.upper(), *([knob.horovod] if knob.horovod else [])]
        flags = _code([*knob.flags, *knob.off_flags])
        rows.append(f"| `{name}` | {flags} | {_code(variables)} | {f'`{shown}`' if shown else 'none'} | {knob.help} |")
    return "\n".join(rows)


def lease_limits() -> str:
    """Every key of a policy file: its default, and what stands below it in the code."""
    body = next(node for node in ast.parse(inspect.getsource(limits)).body if isinstance(node, ast.ClassDef)).body
    rows, keys = ["| key | default | what |", "|---|---|---|"], []
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            keys.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and keys:
            told = " ".join(inspect.cleandoc(str(node.value.value)).split()).replace("``", "`").replace("|", "\\|")
            for key in keys:
                value = msgspec.json.encode(getattr(limits.LeaseLimits(), key)).decode()
                rows.append(f"| `{key.replace('_', '-')}` | `{value}` | {told} |")
            keys = []
    return "\n".join(rows)


def error_tree() -> str:
    """The tree that the module of errors draws."""
    drawn = (errors.__doc__ or "").split("\n\n")[1]
    return "```text\n" + "\n".join(line.removeprefix("    ") for line in drawn.splitlines()) + "\n```"


def api(module_name: str, *names: str) -> str:
    """Every public function and class of a module, or ``names``, with arguments and the first line of its docstring."""
    module = importlib.import_module(module_name)
    rows = ["| name | what |", "|---|---|"]
    for name in names or module.__all__:
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            continue
        called = inspect.isroutine(thing) or (inspect.isclass(thing) and inspect.isfunction(thing.__init__))
        parameters = inspect.signature(thing).parameters.values() if called else ()
        arguments = f"({', '.join(map(_parameter, parameters))})" if called else ""
        rows.append(f"| `{name}{arguments}` | {_first_line(thing)} |")
    return "\n".join(rows)


def batch_table() -> str:
    """What ``python -m examples.bigearthnet.batch_table --write`` has measured last."""
    from examples.bigearthnet import experiment, tables

    return tables.batch_table_markdown(experiment.read(experiment.RESULTS / "batch_table.json"))


def tuning() -> str:
    """What ``python -m examples.bigearthnet.tune`` has tried last."""
    from examples.bigearthnet import tables, tune

    return tables.tuning_markdown(tune.read())


def _first_line(thing: object) -> str:
    if isinstance(thing, ReduceOp):
        return f"operation {int(thing)}"
    if isinstance(thing, ProcessSet):
        return "All ranks."
    return (inspect.getdoc(thing) or "").splitlines()[0].replace("``", "`")


def _parameter(parameter: inspect.Parameter) -> str:
    default, name = parameter.default, parameter.name
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{name}"
    if default is inspect.Parameter.empty:
        return name
    if isinstance(default, ReduceOp):
        return f"{name}={default.label}"
    if isinstance(default, ProcessSet):
        return f"{name}=global_process_set"
    return f"{name}=Compression.none" if inspect.isclass(default) else f"{name}={default!r}"


def _code(words: list[str]) -> str:
    return "<br>".join(f"`{word}`" for word in words)


GENERATORS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "error_tree": error_tree,
    "lease_limits": lease_limits,
    "numpy_api": partial(api, "farandole.numpy"),
    "torch_api": partial(api, "farandole.torch"),
    "elastic_api": partial(api, "farandole.torch.elastic"),
    "optim_api": partial(api, "farandole.torch.optim"),
    "amp_api": partial(api, "farandole.torch.amp"),
    "data_api": partial(api, "farandole.data"),
    "augment_api": partial(api, "farandole.data.loading.augment", *STEPS),
    "batch_table": batch_table,
    "tuning": tuning,
}


def filled(page: str) -> str:
    """The page with its generated parts made anew."""
    return MARK.sub(lambda match: f"{match[1]}{GENERATORS[match[2]]()}\n{match[3]}", page)


def main() -> None:
    """Rewrite the pages that are out of date."""
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text()
        after = filled(before)
        if after != before:
            path.write_text(after)
            sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    sys.path.append(str(DOCS.parent))  # for the examples
    main()
