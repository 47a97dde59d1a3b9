"""The other end of `ParallelLanes`: a process that plays some lanes of one task until its pipe is closed."""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from playvirtual.config import EnvironmentConfig
from playvirtual.envs import gl
from playvirtual.envs.action_spaces import describe
from playvirtual.envs.protocol import Environment
from playvirtual.envs.registry import make
from playvirtual.envs.wire import Array, receive, send
from playvirtual.errors import InputError


def main(descriptor: int) -> None:
    """Serves the process at the other end of the pipe; a parent that dies closes it, and that is the end here."""
    connection = Connection(descriptor)
    environment: Environment | None = None
    try:
        while True:
            header, arrays = receive(connection)
            try:
                if environment is None:
                    environment = _build(header)
                    actions = describe(environment.action_space)
                    send(connection, {"frame_shape": environment.frame_shape, "actions": actions})
                else:
                    send(connection, {}, _serve(environment, header, arrays))
            except Exception as error:
                kind, text = (
                    ("input", str(error)) if isinstance(error, InputError) else ("other", traceback.format_exc())
                )
                send(connection, {"error": kind, "text": text})
    except (EOFError, OSError):
        pass
    finally:
        if environment is not None:
            environment.close()


def _build(header: dict[str, Any]) -> Environment:
    if header["backend"]:
        gl.accept(*header["backend"])
    config = EnvironmentConfig(**header["config"])
    return make(header["task"], header["lanes"], training=header["training"], config=config, workers=1)


def _serve(environment: Environment, header: dict[str, Any], arrays: list[Array]) -> list[Array]:
    if header["call"] == "step":
        return list(environment.step(arrays[0]))
    if header["call"] == "reset":
        return [environment.reset(header["lanes"], header["seeds"])]
    return [environment.picture(header["lane"])]


if __name__ == "__main__":
    main(int(sys.argv[1]))
