"""Folder of a model, used only if all of it verifies.

    models/landcover/SHA256SUMS         digests of the files below: sha256sum -c SHA256SUMS
    models/landcover/facts.json         the fact sheet
    models/landcover/model.safetensors  the weights
    models/landcover/train.py, ...      whatever else belongs to the recipe
    models/landcover/README.md          the card; its facts are compared with facts.json, its prose is free

A folder is written beside its place, and renamed when all of it is on the disk; a change swaps it with a new folder. So
a reader sees all of the old folder or all of the new one. Other files (pictures of the prose, ``.git``) are left alone
and not verified. Models are made to be shared: the umask decides about permissions.

The digests detect damage and edits. They do not identify the author: an attacker who edits a file can write new
digests. So the digest of ``SHA256SUMS`` is the model's own; ``load(folder, digest=...)`` requires it.

The author of a folder may be hostile: links are not followed, names with a path are refused, sizes are compared before
anything is read, and only verified bytes, read once, are used.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, final

import msgspec

from farandole.checkpoint.folder import exchange, sync_folder
from farandole.errors import ModelError, UsageError
from farandole.models import card
from farandole.models.sheet import FactSheet
from farandole.models.weights import Arrays, decode, facts_of

SUMS, FACTS, WEIGHTS, CARD = "SHA256SUMS", "facts.json", "model.safetensors", "README.md"
MOST_TEXT = 2**24
"""Most bytes of the facts, of the card, and of the digests."""

_SUM = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._-]{0,200})")
_BLOCK = 2**20


@final
@dataclass(frozen=True)
class VerifiedModel:
    """Content of a folder, and the reasons to refuse it; ``arrays`` is empty unless the weights verify."""

    digest: str
    sheet: FactSheet
    arrays: Arrays
    problems: list[str]


def write(folder: Path, sheet: FactSheet, weights: bytes, files: Mapping[str, bytes]) -> None:
    """Make the folder of a new model. Raises ``UsageError`` if the folder exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} has something in it already: give the model another folder, or remove that one")
    _put(folder, {WEIGHTS: weights, **files, **_described(sheet, card.written(sheet))}, {})


def update(folder: Path, sheet: FactSheet) -> None:
    """Replace the facts of a model, and the parts of its card that are made of them; everything else stays.

    Raises ``ModelError`` if the folder does not verify, ``UsageError`` if this process runs inside of it: the process
    and its shell would stay in the old folder.
    """
    here = Path.cwd()
    if folder.resolve() in (here, *here.parents):
        raise UsageError(
            f"the folder of a model is replaced as a whole, and this is inside of it: cd {folder.resolve().parent}"
        )
    _, sums, sheet_before = facts(folder)
    if sheet_before.weights != sheet.weights:
        raise ModelError(f"{folder} was replaced meanwhile: try again")
    text = card.renewed(card_of(folder), sheet)
    kept = {name: digest for name, digest in sums.items() if name != FACTS}
    _put(folder, _described(sheet, text), kept)


def _described(sheet: FactSheet, text: str) -> dict[str, bytes]:
    sheet = msgspec.structs.replace(sheet, card=card.digest(text))
    return {FACTS: sheet.encode(), CARD: text.encode()}


def _put(folder: Path, files: Mapping[str, bytes], kept: Mapping[str, str]) -> None:
    """Write a folder and give it its name; files that are ``kept``, by their digests, are linked from the old one."""
    target = folder.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    new.mkdir()
    try:
        sums = dict(kept)
        for name, content in files.items():
            _write(new / name, content)
            if name != CARD:
                sums[name] = hashlib.sha256(content).hexdigest()
        for name in kept:
            _link(target / name, new / name)
        _write(new / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode())
        sync_folder(new)
        _replace(new, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _replace(new: Path, target: Path) -> None:
    """Give ``new`` the name of ``target``; other files of ``target`` are moved, too."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(new, target)  # over an empty folder, too
        return
    if not exchange(new, target):  # NFS and Lustre cannot exchange
        aside = new.with_suffix(".old")
        os.rename(target, aside)
        os.rename(new, target)
        os.rename(aside, new)
    for other in new.iterdir():
        if not (target / other.name).exists():
            os.rename(other, target / other.name)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copyfile(old, new, follow_symlinks=False)


# -- reading ----------------------------------------------------------------------------------------------------------


def facts(folder: Path) -> tuple[str, dict[str, str], FactSheet]:
    """Digest of the model, digests of its files, and its facts, without reading the weights.

    Raises ``ModelError`` if there is no model, or its facts were edited.
    """
    text = _text(folder, SUMS)
    sums: dict[str, str] = {}
    for line in text.splitlines():
        match = _SUM.fullmatch(line)
        if match is None or match[2] in sums or match[2] in (SUMS, CARD):
            raise ModelError(f"{folder / SUMS} has a line that is no digest of a file of this folder: {line[:100]!r}")
        sums[match[2]] = match[1]
    if missing := {FACTS, WEIGHTS} - sums.keys():
        raise ModelError(f"{folder / SUMS} has no digest of {', '.join(sorted(missing))}")
    told = _text(folder, FACTS)
    if hashlib.sha256(told.encode()).hexdigest() != sums[FACTS]:
        raise ModelError(f"{folder / FACTS} was edited, or is damaged: it does not have the digest in {SUMS}")
    try:
        sheet = msgspec.json.decode(told, type=FactSheet)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"{folder / FACTS} is no fact sheet that is known here: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest(), sums, sheet


def card_of(folder: Path) -> str:
    """Text of the card."""
    return _text(folder, CARD)


def verified(folder: Path) -> VerifiedModel:
    """Read everything in the folder, with every reason to refuse it. Raises ``ModelError`` if there are no facts."""
    digest, sums, sheet = facts(folder)
    problems: list[str] = []
    arrays: Arrays = {}
    try:
        arrays = _arrays(folder, sums[WEIGHTS], sheet)
    except ModelError as error:
        problems.append(str(error))
    for name in sorted(sums.keys() - {FACTS, WEIGHTS}):
        try:
            if _digest(folder / name) != sums[name]:
                problems.append(f"{name} does not have the digest in {SUMS}")
        except ModelError as error:
            problems.append(str(error))
    try:
        problems += card.problems(card_of(folder), sheet)
    except ModelError as error:
        problems.append(str(error))
    return VerifiedModel(digest, sheet, arrays, problems)


def _arrays(folder: Path, digest: str, sheet: FactSheet) -> Arrays:
    """The weights, if they match the facts: read once, so the bytes that are used are the verified bytes."""
    weights = sheet.weights
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # a sparse file is read in full, too
    content = _content(folder / WEIGHTS, min(weights.nbytes, memory_bytes))
    if len(content) != weights.nbytes:
        raise ModelError(f"{WEIGHTS} has {len(content)} bytes, and the facts say {weights.nbytes}")
    if not hashlib.sha256(content).hexdigest() == digest == weights.sha256:
        raise ModelError(f"{WEIGHTS} does not have the bytes whose digest is in {SUMS} and {FACTS}")
    arrays = decode(content)
    found = facts_of(arrays)
    for what, names in (
        ("lacks the tensors", weights.tensors.keys() - found.keys()),
        ("has the unknown tensors", found.keys() - weights.tensors.keys()),
        ("has other types or shapes of", {n for n in found if found[n] != weights.tensors.get(n, found[n])}),
    ):
        if names:
            raise ModelError(f"{WEIGHTS} {what} {', '.join(sorted(names)[:3])}")
    return arrays


def _text(folder: Path, name: str) -> str:
    try:
        return _content(folder / name, MOST_TEXT).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{folder / name} is no text") from error


def _content(path: Path, most: int) -> bytes:
    with _opened(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most:
            raise ModelError(f"{path.name} has {nbytes} bytes, and at most {most} are read")
        return file.read(nbytes)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with _opened(path) as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def _opened(path: Path) -> BinaryIO:
    """Open a file. Raises ``ModelError`` for a link, which may lead anywhere, and for anything but a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise ModelError(f"{path} is a link: the files of a model lie in its folder") from error
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ModelError(f"{path} is no file")
    return os.fdopen(fd, "rb")
