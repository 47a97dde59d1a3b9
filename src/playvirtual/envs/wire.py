"""Messages between two processes: a small header in JSON and arrays as they lie in memory. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ALIGNMENT = 16  # bytes; where an array may begin


def send(connection: Connection, header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Sends one message, as one piece because every piece is a system call; `header` may hold whatever JSON can."""
    forms = [(array.dtype.str, array.shape) for array in arrays]
    head = json.dumps([header, forms]).encode() + b"\n"
    parts = [_filled(head), *(_filled(np.ascontiguousarray(array).tobytes()) for array in arrays)]
    connection.send_bytes(b"".join(parts))


def receive(connection: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Waits for one message; raises `EOFError` or `OSError` once the other side is gone. Arrays are read-only."""
    message = connection.recv_bytes()
    end = message.index(b"\n") + 1  # JSON in one line has none of its own
    header, forms = json.loads(message[:end])
    arrays, at = [], end + _missing(end)
    for form, shape in forms:
        count = int(np.prod(shape))
        array = np.frombuffer(message, np.dtype(form), count, at).reshape(shape) if count else np.zeros(shape, form)
        arrays.append(array)
        at += array.nbytes + _missing(array.nbytes)
    return header, arrays


def _missing(size: int) -> int:
    return -size % ALIGNMENT


def _filled(part: bytes) -> bytes:
    return part + bytes(_missing(len(part)))
