"""Which optimizers another one supersedes, by the parameters that they share."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.gradients.shared_parameters import superseded

LEFT, RIGHT, OTHER = object(), object(), object()


class Optimizer:
    """Some parameters."""

    def __init__(self, *params: object) -> None:
        self.params = lambda: list[Any](params)


@pytest.mark.parametrize(
    ("older", "is_of_past", "expected"),
    [
        ((LEFT, RIGHT), False, True),
        ((LEFT,), False, True),
        ((LEFT, OTHER), False, False),  # both may be in use
        ((LEFT, OTHER), True, True),
        ((OTHER,), True, False),
        ((), True, False),
    ],
)
def test_an_optimizer_is_superseded_by_one_that_has_its_parameters(
    older: tuple[object, ...], is_of_past: bool, expected: bool
) -> None:
    one, newer = Optimizer(*older), Optimizer(LEFT, RIGHT)
    assert superseded(newer, [one, newer], lambda _: is_of_past) == [one] * expected
