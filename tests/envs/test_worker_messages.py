"""Messages between this process and env workers arrive unchanged."""

from __future__ import annotations

from multiprocessing import Pipe

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as shapes

from playvirtual.envs.async_vector import receive, send

TYPES = st.sampled_from([np.uint8, np.bool_, np.int64, np.float32, np.float64])
ARRAYS = TYPES.flatmap(lambda kind: shapes.arrays(kind, shapes.array_shapes(min_dims=0, min_side=0, max_side=5)))


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.integers())), st.lists(ARRAYS, max_size=4))
def test_header_and_arrays_arrive_bit_exact(header, arrays):
    here, there = Pipe()
    with here, there:
        send(here, header, arrays)
        found, received = receive(there)
    assert found == header
    assert len(received) == len(arrays)
    for ours, theirs in zip(arrays, received, strict=True):
        assert theirs.dtype == ours.dtype
        assert theirs.shape == ours.shape
        assert theirs.tobytes() == ours.tobytes()
        assert theirs.flags.aligned


def test_receiving_from_a_closed_pipe_raises():
    here, there = Pipe()
    here.close()
    with there, pytest.raises(EOFError):
        receive(there)
