"""Rows as columns: what writes the values of many rows at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyedstate.types.contract.transposing import transposed


@given(
    st.integers(0, 4).flatmap(
        lambda width: st.tuples(
            st.just(width), st.lists(st.lists(st.integers(), min_size=width, max_size=width))
        )
    )
)
def test_columns_have_the_values_of_the_rows_in_their_order(case):
    width, rows = case
    assert transposed(rows, width) == [[row[place] for row in rows] for place in range(width)]


def test_rows_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="another number of values than 2"):
        transposed([(1, 2), (1, 2, 3)], 2)
