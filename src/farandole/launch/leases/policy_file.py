"""Policy files: bounds of a site, and within them the limits of a user.

    # /etc/farandole/policy.toml: the site's           # policy.toml: a user's
    most-leases = 32                                   max-np = 16
    lease-lengths-s = [14400]                          budget-node-hours = 200
    look-pending-s = 60                                rules = [{ when = "val_acc>=0.9", then = "np=2,nice=1000" }]

    limits = bounded(read_policy(SITE_POLICY), read_policy(path))

The site's values are the defaults of a user. A user's value may be stricter; a wider one is refused.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import msgspec

from farandole.errors import SettingsError, UsageError
from farandole.launch.leases.limits import LeaseLimits, open_hours, windows_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SITE_POLICY = Path("/etc/farandole/policy.toml")
KEYS: Final[tuple[str, ...]] = LeaseLimits.__struct_encode_fields__
OF_THE_USER = ("min-np", "batch", "rules", "lease-workers", "lease-nodes")
"""Keys that a site may set as defaults only: users may set any value."""


@final
class PolicyFile(NamedTuple):
    """Keys and values of a policy file."""

    path: str
    values: Mapping[str, Any] = {}


def read_policy(path: Path) -> PolicyFile:
    """Read the keys and values of a file, none if it does not exist; raises ``SettingsError`` if they are invalid."""
    try:
        policy = PolicyFile(str(path), tomllib.loads(path.read_text()))
    except FileNotFoundError:
        return PolicyFile(str(path))
    except OSError as error:
        raise UsageError(f"the policy file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the policy file {path} is not TOML: {error}; write lines like: max-np = 16") from error
    limits_of(policy)
    return policy


def limits_of(policy: PolicyFile) -> LeaseLimits:
    """The limits of one policy file alone."""
    for key in policy.values:
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the keys are: {', '.join(KEYS)}"
            raise SettingsError(f"{policy.path} has the key {key!r}, which is none of a policy: {hint}")
    try:
        return msgspec.convert(dict(policy.values), LeaseLimits)
    except msgspec.ValidationError as error:  # also wraps errors raised by LeaseLimits
        raise SettingsError(f"{policy.path}: {error}") from error


def bounded(site: PolicyFile, user: PolicyFile) -> LeaseLimits:
    """The limits of a user within the bounds of a site; raises ``SettingsError`` for a key that exceeds them."""
    ceiling, asked = limits_of(site), limits_of(user)
    merged = {**site.values, **user.values}
    for key in user.values:
        if key not in site.values or key in OF_THE_USER:
            continue
        bound, value = (getattr(limits, key.replace("-", "_")) for limits in (ceiling, asked))
        if key == "hours":
            merged[key] = _common_hours(site, user)
        elif (wrong := _widens(key, value, bound)) is not None:
            shown = msgspec.json.encode(value).decode(), msgspec.json.encode(bound).decode()
            raise SettingsError(
                f"{user.path}: {key} = {shown[0]} is wider than {key} = {shown[1]}, the bound of this site in "
                f"{site.path}: write {wrong}, or leave the line out"
            )
    if merged.get("max-np") and merged.get("min-np", 1) > merged["max-np"]:
        raise SettingsError(f"{user.path}: min-np = {merged['min-np']} is above max-np = {merged['max-np']}")
    return limits_of(PolicyFile(user.path if user.values else site.path, merged))


def _common_hours(site: PolicyFile, user: PolicyFile) -> tuple[str, ...]:
    common = open_hours(site.values["hours"]) & open_hours(user.values["hours"])
    if not common:
        raise SettingsError(
            f"{user.path}: hours = {list(user.values['hours'])} have none in common with "
            f"hours = {list(site.values['hours'])} in {site.path}: write hours within these"
        )
    return windows_of(common)


def _at_most(value: float, bound: float) -> str | None:
    """Smaller is stricter."""
    return None if value <= bound else f"{bound:g} or less"


def _at_most_unless_0(value: float, bound: float) -> str | None:
    """Smaller is stricter, and 0 is no bound."""
    return None if not bound or (value or math.inf) <= bound else f"from 1 to {bound:g}"


def _at_least(value: float, bound: float) -> str | None:
    """Larger is stricter."""
    return None if value >= bound else f"{bound:g} or more"


def _longest(value: tuple[float, ...], bound: tuple[float, ...]) -> str | None:
    """Shorter leases are stricter."""
    return None if max(value) <= max(bound) else f"lengths up to {max(bound):g}"


def _each_later(value: tuple[float, ...], bound: tuple[float, ...]) -> str | None:
    """Longer pauses are stricter, each after as many failures."""
    pairs = [(value[min(i, len(value) - 1)], bound[min(i, len(bound) - 1)]) for i in range(max(len(value), len(bound)))]
    return None if all(mine >= theirs for mine, theirs in pairs) else f"{list(bound)} or longer ones"


def _among(value: tuple[str, ...], bound: tuple[str, ...]) -> str | None:
    """A subset of the names is stricter; an empty tuple allows any name."""
    return None if not bound or (value and set(value) <= set(bound)) else f"some of {', '.join(bound)}"


def _if_not(value: bool, bound: bool) -> str | None:
    """True is stricter."""
    return None if value >= bound else "true"


STRICTER: Final[Mapping[str, Callable[[Any, Any], str | None]]] = {
    **dict.fromkeys(("max-np", "most-nodes", "budget-node-hours"), _at_most_unless_0),
    **dict.fromkeys(
        ("most-leases", "most-pending", "array-leases", "growth-per-advice", "changes-per-hour", "shrink-after-s",
         "breaker-leases", "wait-quantile", "lead-patience-s"),
        _at_most,
    ),
    **dict.fromkeys(
        ("growth-at", "advice-apart-s", "worth-pauses", "worth-warmups", "shrink-at", "opposite-s", "leave-steps",
         "leave-s", "successor-share", "order-s", "look-pending-s", "look-s", "told-pending-s"),
        _at_least,
    ),
    "lease-lengths-s": _longest,
    "pauses-s": _each_later,
    "partitions": _among,
    "paused": _if_not,
}  # fmt: skip
"""Check for each key: returns what to write if the value is not as strict as the bound, else ``None``."""


def _widens(key: str, value: Any, bound: Any) -> str | None:
    return STRICTER[key](value, bound)
