"""Fields: where samples lie, for many at once and for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.storage.fields import Field
from farandole.errors import UsageError
from tests.support.data.staging_sets import listed_fields, regular_fields

SIZES = [0, 70, 5000, 120_000, 3]
FIELDS = st.one_of(regular_fields(SIZES), listed_fields(SIZES), st.just(Field.whole_files(SIZES)))


def test_a_regular_field_says_where_its_samples_lie() -> None:
    rows = Field.regular([0, 1], [1000, 800], [128, 128], [400, 400], [400, 400])
    files, offsets, nbytes = rows.locate([3, 1001])
    assert (files.tolist(), offsets.tolist(), nbytes.tolist()) == ([0, 1], [1328, 528], [400, 400])
    assert len(rows) == 1800


@given(FIELDS)
def test_one_at_a_time_is_as_all_at_once(field: Field) -> None:
    files, offsets, nbytes = field.locate(np.arange(len(field)))
    assert [field.extent(sample) for sample in range(len(field))] == list(
        zip(files.tolist(), offsets.tolist(), nbytes.tolist(), strict=True)
    )


@given(FIELDS)
def test_samples_are_told_to_be_sorted_only_where_they_are(field: Field) -> None:
    files, offsets, _ = field.locate(np.arange(len(field)))
    places = list(zip(files.tolist(), offsets.tolist(), strict=True))
    assert not field.is_sorted or places == sorted(places)


@given(FIELDS, st.integers(1, 1 << 20))
def test_cuts_are_where_samples_begin(field: Field, limit: int) -> None:
    for block in range(len(field.files)):
        samples = np.arange(field.first[block], field.first[block + 1])
        starts = set(field.locate(samples)[1].tolist()) | ({int(field.base[block])} if not field.is_listed else set())
        assert set(field.cuts(block, limit).tolist()) <= starts


@given(FIELDS)
def test_columns_make_the_same_field(field: Field) -> None:
    again = Field(**field.columns())
    every = np.arange(len(field))
    assert [column.tolist() for column in again.locate(every)] == [column.tolist() for column in field.locate(every)]


def test_blocks_without_samples_hide_no_disorder() -> None:
    field = Field.regular([0, 1, 0], [2, 0, 2], [1000, 0, 500], [10, 10, 10], [10, 10, 10])
    assert not field.is_sorted


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="2 blocks has columns"):
        Field([0, 1, 2], [0, 1], base=[0], stride=[0], nbytes=[4])
    with pytest.raises(UsageError, match="lists 1 offsets"):
        Field.listed([0], [2], [0], [1, 1])
