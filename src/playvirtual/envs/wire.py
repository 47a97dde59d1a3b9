"""Messages between two processes: a small header in JSON and arrays as they lie in memory. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def send(connection: Connection, header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Sends one message; `header` may hold whatever JSON can."""
    forms = [(array.dtype.str, array.shape) for array in arrays]
    connection.send_bytes(json.dumps([header, forms]).encode())
    for array in arrays:
        connection.send_bytes(np.ascontiguousarray(array).tobytes())


def receive(connection: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Waits for one message; raises `EOFError` or `OSError` once the other side is gone. Arrays are read-only."""
    header, forms = json.loads(connection.recv_bytes())
    arrays = [np.frombuffer(connection.recv_bytes(), np.dtype(form)).reshape(shape) for form, shape in forms]
    return header, arrays
