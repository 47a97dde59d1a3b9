"""NVIDIA's Multi-Process Service (MPS): kernels of several runs on one GPU overlap instead of taking turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playvirtual.errors import InputError, unknown

PROGRAM = "nvidia-cuda-mps-control"
MODES = ("auto", "on", "off")
DEFAULT_PIPES = Path("/tmp/nvidia-mps")  # where clients look when nothing is set
ANSWER_SECONDS = 20.0  # that the control program has to answer


def check(mode: str) -> None:
    """Raises an `InputError` unless `mode` is known and the program that it needs is installed."""
    if mode not in MODES:
        raise unknown("mps", mode, MODES)
    if mode == "on" and shutil.which(PROGRAM) is None and not runs_already():
        raise InputError(f"mps: 'on' needs the program {PROGRAM}, which is not on the PATH; allowed: auto, off")


def can_be_used(mode: str) -> bool:
    """Whether runs on this machine would be clients of a daemon, the user's or one that is started for them."""
    return mode != "off" and (shutil.which(PROGRAM) is not None or runs_already())


def runs_already() -> bool:
    """Whether the user has started a daemon, which every run uses by default."""
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ or ((DEFAULT_PIPES / "control").exists() and _answers())


def _answers() -> bool:
    """Whether the daemon of the default folder is alive; files that a killed one left there do not count."""
    if shutil.which(PROGRAM) is None:
        return True  # it cannot be asked
    try:
        asked = subprocess.run([PROGRAM], input=b"get_server_list\n", capture_output=True, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return asked.returncode == 0


def start(mode: str, gpus: Sequence[str]) -> Daemon | None:
    """A daemon for these GPUs; None if `mode` is "off", MPS is not installed, or a daemon runs already.

    With "on" a daemon that cannot start is an `InputError`; with "auto" it is one line on stderr.
    """
    if mode == "off" or runs_already() or shutil.which(PROGRAM) is None:
        return None
    try:
        return Daemon(gpus)
    except (OSError, subprocess.SubprocessError) as error:
        reason = " ".join((getattr(error, "stderr", None) or str(error)).split())
        if mode == "on":
            raise InputError(f"mps: 'on', but {PROGRAM} did not start: {reason}; allowed: auto, off") from None
        print(f"playvirtual: MPS did not start ({reason}); runs on one GPU take turns", file=sys.stderr, flush=True)
        return None


class Daemon:
    """A control daemon for one sweep, separate from any other by its private folder; `stop` ends it."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._gpus = list(gpus)
        self._folder = Path(tempfile.mkdtemp(prefix="playvirtual-mps-"))
        # The environment variables that make a process a client of this daemon.
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }
        try:
            for folder in self.environment.values():
                Path(folder).mkdir()
            self._control("-d")
            self._control(words="get_server_list\n")  # fails unless the daemon is ready for runs
        except BaseException:
            self.stop()
            raise

    def visible(self, index: int) -> str:
        """The value of a client's CUDA_VISIBLE_DEVICES for the GPU at that place in `gpus`.

        The daemon sees these GPUs alone and counts them from 0; only a UUID means the same on both sides.
        """
        name = self._gpus[index]
        return str(index) if name.isdigit() else name

    def stop(self) -> None:
        """Ends the daemon, if it is alive, and removes its folder; its clients must have ended."""
        try:
            self._control(words="quit\n")
        except subprocess.TimeoutExpired:
            print(f"playvirtual: the MPS daemon of {self._folder} does not end", file=sys.stderr)
            return  # its folder stays, since the control program needs it to end the daemon by hand
        except (OSError, subprocess.SubprocessError):
            pass  # it has ended already, or never started
        shutil.rmtree(self._folder, ignore_errors=True)

    def _control(self, *arguments: str, words: str = "") -> None:
        # Output goes into a file, not a pipe: a daemon keeps what it inherits open, and a pipe would never end.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [PROGRAM, *arguments],
                env={**os.environ, **self.environment, "CUDA_VISIBLE_DEVICES": ",".join(self._gpus)},
                input=words,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=ANSWER_SECONDS,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which ends its runs before the daemon
            )
            output.seek(0)
            if done.returncode:
                reason = output.read().strip() or f"exit code {done.returncode}"
                raise subprocess.CalledProcessError(done.returncode, PROGRAM, stderr=reason)
