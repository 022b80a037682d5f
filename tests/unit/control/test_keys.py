"""One secret gives both key pairs; anything else is refused with what to do."""

from __future__ import annotations

import pytest

from farandole.control.keys import JobKeys, new_secret
from farandole.errors import ControlError


def test_same_secret_gives_same_keys_and_sides_differ() -> None:
    secret = new_secret()
    keys = JobKeys.from_secret(secret)
    assert keys == JobKeys.from_secret(secret)
    assert keys.server != keys.client
    assert keys != JobKeys.from_secret(new_secret())


@pytest.mark.parametrize("secret", ["", "abc", "zz" * 32, "00" * 31])
def test_what_is_no_secret_is_refused(secret: str) -> None:
    with pytest.raises(ControlError, match="FARANDOLE_KEY"):
        JobKeys.from_secret(secret)
