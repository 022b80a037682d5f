"""Layer state outside variables: vocabularies, boundaries of bins, buffers, and constants derived from variables.

found = tables.read(model)          # plain values by layer, {} if all state is in variables
tables.write(model, found)          # on another rank, or in another process, for the same model
tables.refresh(variables)           # after an assignment: recompute constants that layers derive from these

``Normalization`` computes with constants derived from its variables, ``Discretization`` with a list, lookups and
``TextVectorization`` with a vocabulary, PyTorch modules also with buffers. Keras restores this state only when it loads
its own files. A traced step contains the old state as constants, so it is traced again if the state changed.
"""

from __future__ import annotations

import gc
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import keras
import numpy as np

Table: TypeAlias = dict[str, Any]
"""State of one layer: plain values, and arrays."""


class _Kind(NamedTuple):
    """One kind of layer state outside variables, with functions to detect, read and write it."""

    has: Callable[[Any], bool]
    read: Callable[[Any], Table]
    write: Callable[[Any, Table], None]


def read(model: keras.Model) -> dict[str, Table]:
    """Copy the state of a model's layers outside variables, by position of the layer."""
    return {f"{i}.{kind}": _KINDS[kind].read(layer) for i, layer, kind in _keepers(model)}


def write(model: keras.Model, tables: Mapping[str, Table]) -> None:
    """Set the state of a model's layers outside variables. Layers that ``tables`` does not name are unchanged."""
    changed = []
    for i, layer, kind in _keepers(model):
        table = tables.get(f"{i}.{kind}")
        if table is None:
            continue
        differs = not _are_alike(table, _KINDS[kind].read(layer))
        if differs:
            _KINDS[kind].write(layer, table)
        if _is_new(layer, table) or differs:
            changed.append(layer)
    _trace_anew_with(changed)


def has_any(model: keras.Model) -> bool:
    """True if some layer has state outside variables."""
    return any(True for _ in _keepers(model))


@final
class LayerTables:
    """State of one model's layers outside variables, as a value of an elastic state."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Table]:
        """See ``read``."""
        return read(self._model)

    def load_state_dict(self, tables: Mapping[str, Table]) -> None:
        """See ``write``."""
        write(self._model, tables)


def refresh(variables: Iterable[Any]) -> None:
    """Recompute the constants that layers derive from ``variables``, in every model of this process."""
    changed = []
    for layer in deriving(variables):
        before = _constants(layer)
        layer.finalize_state()
        after = _constants(layer)
        if _is_new(layer, after) or not _are_alike(before, after):
            changed.append(layer)
    _trace_anew_with(changed)


def deriving(variables: Iterable[Any]) -> list[Any]:
    """Layers of this process that compute with constants derived from ``variables``."""
    assigned = {id(variable) for variable in variables}
    # A variable has no reference to its layer, so search all objects; ``gc.freeze`` hides objects from the search.
    layers = [each for each in _living(keras.layers.Layer) if _derives(each)]
    return [layer for layer in layers if any(id(v) in assigned for v in _own_variables(layer))]


def _living(kind: type) -> list[Any]:
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def _derives(layer: Any) -> bool:
    return callable(getattr(type(layer), "finalize_state", None)) and getattr(layer, "built", False)


_given: weakref.WeakKeyDictionary[Any, Table] = weakref.WeakKeyDictionary()
"""Last table set on each layer. Steps traced since may contain this table, and none newer."""


def _is_new(layer: Any, table: Table) -> bool:
    """Note that ``table`` was set on a layer; return true if it differs from the last one.

    The layer may have this state already: if a script adapts the layer between two fits, Keras does not renew its own
    compiled steps.
    """
    before, _given[layer] = _given.get(layer), table
    return before is None or not _are_alike(before, table)


def _constants(layer: Any) -> Table:
    return {name: np.array(keras.ops.convert_to_numpy(x)) for name, x in vars(layer).items() if keras.ops.is_tensor(x)}


def _own_variables(layer: Any) -> Sequence[Any]:
    return [*getattr(layer, "_trainable_variables", ()), *getattr(layer, "_non_trainable_variables", ())]


def traces(model: keras.Model) -> int:
    """Number of times that the steps of ``model`` had to be traced again."""
    return _traces.get(model, 0)


_traces: weakref.WeakKeyDictionary[keras.Model, int] = weakref.WeakKeyDictionary()


def _trace_anew_with(layers: Sequence[Any]) -> None:
    """Make all models that contain one of ``layers`` trace their steps again."""
    changed = set(map(id, layers))
    for model in _living(keras.Model) if changed else ():
        if any(id(layer) in changed for layer in model._flatten_layers()):
            _trace_anew(model)


def _trace_anew(model: Any) -> None:
    """Drop compiled steps, which contain constants, and make new ones; a running ``fit`` uses the new function."""
    _traces[model] = traces(model) + 1
    for name in ("train", "test", "predict"):
        if getattr(model, f"{name}_function", None) is not None:
            getattr(model, f"make_{name}_function")(force=True)


def _keepers(model: keras.Model) -> Iterator[tuple[int, Any, str]]:
    for i, layer in enumerate(model._flatten_layers()):
        for name, kind in _KINDS.items():
            if kind.has(layer):
                yield i, layer, name
                break


def _are_alike(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_alike(value, other[name]) for name, value in one.items())
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


# -- kinds ------------------------------------------------------------------------------------------------------------


def _read_boundaries(layer: Any) -> Table:
    return {"boundaries": None if layer.bin_boundaries is None else list(map(float, layer.bin_boundaries))}


def _write_boundaries(layer: Any, table: Table) -> None:
    layer.bin_boundaries = table["boundaries"]


_vocabularies: weakref.WeakKeyDictionary[Any, tuple[object, Table]] = weakref.WeakKeyDictionary()
"""Cache of vocabularies by layer, with the TensorFlow table they come from: an elastic state reads at each commit."""


def _read_vocabulary(layer: Any) -> Table:
    lookup = getattr(layer, "_lookup_layer", layer)
    held, weights = getattr(lookup, "lookup_table", None), getattr(lookup, "idf_weights_const", None)
    before, table = _vocabularies.get(layer, (None, {}))
    if held is None or before is not held:  # Keras makes a new table for each change
        table = _words_of(layer, weights)
        _vocabularies[layer] = held, table
    return table


def _words_of(layer: Any, weights: Any) -> Table:
    words = layer.get_vocabulary()
    plain = [word.item() if isinstance(word, np.generic) else word for word in words]
    return {"words": plain, "weights": None if weights is None else np.array(weights)}


def _write_vocabulary(layer: Any, table: Table) -> None:
    if table["weights"] is None:
        layer.set_vocabulary(table["words"])
    else:
        layer.set_vocabulary(table["words"], idf_weights=table["weights"][: len(table["words"])])


def _buffers_of(layer: Any) -> Table:
    return dict(layer.named_buffers()) if hasattr(layer, "named_buffers") else {}


def _read_buffers(layer: Any) -> Table:
    return {name: np.array(keras.ops.convert_to_numpy(buffer)) for name, buffer in _buffers_of(layer).items()}


def _write_buffers(layer: Any, table: Table) -> None:
    for name, buffer in _buffers_of(layer).items():
        buffer.copy_(keras.ops.convert_to_tensor(table[name]))


def _read_files(layer: Any) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        layer.save_assets(folder)
        files = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
        return {os.fspath(file.relative_to(folder)): file.read_bytes() for file in sorted(files)}


def _write_files(layer: Any, table: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in table.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        layer.load_assets(folder)


def _has_methods(layer: Any, *names: str) -> bool:
    return all(callable(getattr(layer, name, None)) for name in names)


_KINDS: dict[str, _Kind] = {
    "bins": _Kind(lambda layer: isinstance(layer, keras.layers.Discretization), _read_boundaries, _write_boundaries),
    "vocabulary": _Kind(
        lambda layer: _has_methods(layer, "get_vocabulary", "set_vocabulary"), _read_vocabulary, _write_vocabulary
    ),
    "files": _Kind(lambda layer: _has_methods(layer, "save_assets", "load_assets"), _read_files, _write_files),
    "buffers": _Kind(lambda layer: bool(_buffers_of(layer)), _read_buffers, _write_buffers),
}
