"""Weights of any framework as named NumPy arrays, and these as the bytes of a safetensors file.

    text = encode({"w": np.ones((2, 3), np.float32)}, "numpy")
    decode(text)["w"].shape                                         # (2, 3)

A PyTorch module becomes its ``state_dict``; a Keras model its ``weights``, in their order, each with a number and its
path; nested dicts, lists and tuples of arrays, as in JAX, become ``a/b/0``. NumPy has no bfloat16 and no float8, so
such arrays have the types of ml_dtypes. Nothing is pickled: arrays of objects are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from farandole.errors import ModelError, UsageError
from farandole.models.sheet import TensorFact

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

LONGEST_HEADER = 2**25
"""Most bytes of the header of a safetensors file; the header of a model of 100,000 tensors has 10 MB."""

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
"""Types of safetensors, and their names in NumPy and ml_dtypes."""

_NAMES = {name: dtype for dtype, name in _DTYPES.items()}


def arrays_of(weights: Any) -> tuple[Arrays, str]:
    """Weights as named arrays on the host, and their framework: ``pytorch``, ``keras``, ``jax`` or ``numpy``.

    Raises ``UsageError`` if there are no weights, and for values that are no numbers.
    """
    framework = "numpy"
    if _is_keras(weights):
        named, framework = _keras_named(weights), "keras"
    elif hasattr(weights, "state_dict"):
        named = dict(weights.state_dict())
    else:
        named = dict(_flat(weights))
    if not named:
        raise UsageError(f"{type(weights).__name__} has no weights: give a module, a model, or a tree of arrays")
    homes = {type(value).__module__.partition(".")[0] for value in named.values()}
    if framework == "numpy" and homes & {"torch", "jax", "jaxlib"}:
        framework = "pytorch" if "torch" in homes else "jax"
    return {name: _array(name, value) for name, value in named.items()}, framework


def _is_keras(weights: Any) -> bool:
    return hasattr(weights, "weights") and hasattr(weights, "layers")


def _keras_named(model: Any) -> dict[str, Any]:
    """Variables by number and path: Keras's own names have counters, which differ between two models of one process."""
    return {f"{i:04d}/{variable.path}": variable.value for i, variable in enumerate(model.weights)}


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings, lists and tuples, with their paths."""
    if isinstance(tree, Mapping):
        inside: Any = tree.items()
    elif isinstance(tree, list | tuple):
        inside = enumerate(tree)
    else:
        yield path or "value", tree
        return
    for key, value in inside:
        yield from _flat(value, f"{path}/{key}" if path else str(key))


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    """Contiguous array in host memory."""
    if type(value).__module__.partition(".")[0] == "torch":
        value = _of_torch(value)
    elif hasattr(value, "numpy") and not isinstance(value, np.ndarray):  # TensorFlow
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.name not in _NAMES:
        raise UsageError(f"the weight {name} has the type {array.dtype}: safetensors has {', '.join(sorted(_NAMES))}")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)


def _of_torch(tensor: Any) -> npt.NDArray[Any]:
    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16" or name.startswith("float8"):
        import torch

        of_bits = tensor.view(torch.int16 if name == "bfloat16" else torch.uint8).numpy()
        return np.asarray(of_bits.view(_dtype(name)))
    return np.asarray(tensor.numpy())


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))  # type: ignore[no-any-return]
    return np.dtype(name)


def facts_of(arrays: Arrays) -> dict[str, TensorFact]:
    """Type and shape of each array."""
    return {name: TensorFact(_NAMES[array.dtype.name], list(array.shape)) for name, array in arrays.items()}


def encode(arrays: Arrays, framework: str) -> bytes:
    """The arrays as a safetensors file. Its metadata has the ``format`` that hubs expect: ``pt`` or ``np``."""
    import safetensors.numpy

    metadata = {"format": "pt" if framework == "pytorch" else "np"}
    return bytes(safetensors.numpy.save(arrays, metadata))


def decode(text: bytes | bytearray) -> Arrays:
    """The arrays of a safetensors file. Raises ``ModelError`` for invalid bytes."""
    import safetensors

    deserialize: Callable[[bytes], Any] = safetensors.deserialize  # without annotations, and so without a type, there
    length = int.from_bytes(text[:8], "little")
    if len(text) < 8 or length > min(LONGEST_HEADER, len(text) - 8):
        raise ModelError(f"the weights are no safetensors file: its header is said to have {length} bytes")
    try:
        header = json.loads(text[8 : 8 + length])
        if unknown := {str(each["dtype"]) for name, each in header.items() if name != "__metadata__"} - set(_DTYPES):
            raise ModelError(f"the weights have types that are not known here: {', '.join(sorted(unknown))}")
        found = deserialize(bytes(text))  # which checks shapes and offsets against the bytes
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"the weights are no safetensors file: {str(error)[:200]}") from error
    return {n: np.frombuffer(t["data"], _dtype(_DTYPES[t["dtype"]])).reshape(t["shape"]) for n, t in found}


def fill(into: Any, arrays: Arrays) -> Any:
    """Put the arrays into a module or a model, or into a new tree like ``into``; returns the result.

    Raises ``ModelError`` if tensors are missing, are too many, or have another shape; nothing is changed then.
    """
    if _is_keras(into):
        named = _renumbered(into, arrays)
    elif hasattr(into, "load_state_dict"):
        named = into.state_dict()
    else:
        named = dict(_flat(into))
    _require_same({name: tuple(np.shape(value)) for name, value in named.items()}, arrays)
    if _is_keras(into):
        for variable, name in zip(into.weights, named, strict=True):
            variable.assign(arrays[name])
    elif hasattr(into, "load_state_dict"):
        into.load_state_dict({name: _to_torch(array) for name, array in arrays.items()})
    else:
        return _tree_like(into, arrays)
    return into


def _renumbered(model: Any, arrays: Arrays) -> dict[str, Any]:
    """Variables of a Keras model under the names of the arrays at the same places, if the last parts agree."""
    names = sorted(arrays)
    named = {}
    for i, (name, value) in enumerate(_keras_named(model).items()):
        other = names[i] if i < len(names) else ""
        same = other[:5] == name[:5] and other.rpartition("/")[2] == name.rpartition("/")[2]
        named[other if same else name] = value
    return named


def _require_same(shapes: Mapping[str, tuple[int, ...]], arrays: Arrays) -> None:
    problems = []
    for what, names in (("are missing", shapes.keys() - arrays), ("are too many", arrays.keys() - shapes.keys())):
        if names:
            problems.append(f"{len(names)} {what} ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})")
    problems += [
        f"{name} has the shape {list(arrays[name].shape)} and is to have {list(shapes[name])}"
        for name in sorted(shapes.keys() & arrays)
        if shapes[name] != arrays[name].shape
    ]
    if problems:
        raise ModelError(f"these weights are of another model: of its tensors {'; '.join(problems[:4])}")


def _to_torch(array: npt.NDArray[Any]) -> Any:
    import torch

    name = array.dtype.name
    if name == "bfloat16" or name.startswith("float8"):
        bits = array.view(np.int16 if name == "bfloat16" else np.uint8)
        return torch.from_numpy(bits.copy()).view(getattr(torch, name))
    return torch.from_numpy(array.copy())


def _tree_like(tree: Any, arrays: Arrays, path: str = "") -> Any:
    if isinstance(tree, Mapping):
        return {key: _tree_like(value, arrays, f"{path}/{key}" if path else str(key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        inside = [_tree_like(value, arrays, f"{path}/{i}" if path else str(i)) for i, value in enumerate(tree)]
        return type(tree)(*inside) if hasattr(tree, "_fields") else type(tree)(inside)
    array = arrays[path or "value"]
    if type(tree).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.asarray(array)
    return _to_torch(array) if type(tree).__module__.partition(".")[0] == "torch" else array
