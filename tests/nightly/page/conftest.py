"""A page in Chromium, for the tests of the live page and of that of a search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.monitor.page import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    opened_page = context.new_page()
    troubles: list[str] = []
    opened_page.on("pageerror", lambda error: troubles.append(str(error)))
    yield opened_page
    context.close()
    assert not troubles
