"""The choice of the OpenGL back end that renders MuJoCo's pixels."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from importlib import import_module

from playvirtual.errors import InputError

# In order of preference: EGL uses a graphics card where there is one, OSMesa never does.
CANDIDATES = ("egl", "osmesa")
# A back end that does not work may crash the interpreter, so it is tried in another process first. That process exits
# without clean-up because the context's destructor prints errors at exit.
PROBE = """
import os, mujoco
context = mujoco.GLContext(64, 64)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_150)
from OpenGL import GL
print(GL.glGetString(GL.GL_VENDOR).decode(), GL.glGetString(GL.GL_RENDERER).decode(), sep=", ", flush=True)
os._exit(0)
"""
PROBE_SECONDS = 60
ADVICE = (
    "install one with `apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri libopengl0` (EGL) or "
    "`apt-get install libosmesa6` (OSMesa)"
)

_accepted: list[tuple[str, str]] = []  # the result of `choose` in another process, at most one


def backend() -> str:
    """The back end in use with its vendor and renderer: "egl (Mesa/X.org, llvmpipe …)"."""
    name, renderer = choose()
    return f"{name} ({renderer})"


def load_triton_first() -> None:
    """Imports Triton, where it is installed; call it before anything may render.

    Mesa, which renders where there is no graphics card, brings an LLVM of its own. If Triton is imported after it into
    the same process, as PyTorch's optimizers do, the interpreter crashes; in the opposite order both work.
    """
    with suppress(ImportError):
        import_module("triton")


def choose() -> tuple[str, str]:
    """Chooses a back end for this process; returns its name and its "vendor, renderer".

    MUJOCO_GL decides if it is set, otherwise the first of `CANDIDATES` that works is taken. Call it before the first
    import of dm_control, which reads the choice from MUJOCO_GL.
    """
    return _accepted[0] if _accepted else _try()


def accept(name: str, renderer: str) -> None:
    """Uses what `choose` returned in another process on this machine, without trying it again."""
    os.environ["MUJOCO_GL"] = name
    _accepted[:] = [(name, renderer)]


@lru_cache(maxsize=1)
def _try() -> tuple[str, str]:
    load_triton_first()
    wanted = os.environ.get("MUJOCO_GL", "").strip().lower()  # MuJoCo takes capitals, dm_control does not
    for name in (wanted,) if wanted else CANDIDATES:
        renderer = _probe(name)
        if renderer is not None:
            os.environ["MUJOCO_GL"] = name
            return name, renderer
    if wanted:
        raise InputError(f"MUJOCO_GL: {wanted!r} cannot draw here; unset it to have one chosen, or {ADVICE}")
    raise InputError(f"dmc: none of the OpenGL back ends {', '.join(CANDIDATES)} works here; {ADVICE}")


def _probe(name: str) -> str | None:
    """The vendor and renderer of a back end that works here; None if it does not."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, "MUJOCO_GL": name},
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return probe.stdout.strip()
