"""What makes a run fail is told with the last good checkpoint and the command that resumes the run from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exception, format_exception_only

from playvirtual import files
from playvirtual.errors import Crash, EnvError, InputError, RunError, in_one_line, out_of_memory
from playvirtual.runs.atomic_io import LOCK, RunLock


class Failures:
    """Turns the errors of one run into those that its user sees, and knows the run's last good checkpoint.

    `present_step` tells the global step that is being taken, or after which the agent is evaluated.
    """

    def __init__(self, run: Path, lock: RunLock, resume_command: str, present_step: Callable[[], int]) -> None:
        self.run, self.lock, self.resume_command, self._present_step = run, lock, resume_command, present_step
        self.last_checkpoint: Path | None = None  # the last good one

    @contextmanager
    def of_writing(self) -> Iterator[None]:
        """Turns a full disk, a read-only or a removed folder into a RunError with the path and the last checkpoint.

        Nothing is written where another process may write: its run and this one would become one of wrong numbers.
        """
        if lost := self.lock.lost():
            raise self.error(
                f"run folder: {str(self.run / LOCK)!r} {lost}: another process may work there, and this one "
                "writes nothing more"
            )
        try:
            yield
        except OSError as error:
            if not self.run.is_dir():
                raise RunError(f"run folder: {str(self.run)!r} is gone, with its checkpoints") from error
            raise self.error(f"cannot write {str(error.filename or self.run)!r}: {error.strerror}") from error

    @contextmanager
    def of_training(self) -> Iterator[None]:
        """Turns an unexpected error, of an environment or of this program, into a RunError with the last checkpoint."""
        try:
            yield
        except EnvError as error:
            raise self.error(f"{error}; in step {self._present_step()}{self._traceback(error)}") from error
        except (InputError, RunError):
            raise
        except Exception as error:
            memory = out_of_memory(error) if isinstance(error, (MemoryError, RuntimeError)) else None
            if memory is not None:
                raise self.error(memory) from error
            reason = " ".join("".join(format_exception_only(error)).split())
            raise Crash(f"{reason}; {self._last_good()}") from error

    def error(self, reason: str) -> RunError:
        """The reason with the last good checkpoint and the command that resumes the run from it."""
        return RunError(f"{reason}; {self._last_good()}")

    def of_callback(self, name: str, error: BaseException, step: int) -> RunError:
        """A callback raised an error."""
        return self.error(f"callbacks: {name} raised {in_one_line(error)} in step {step}")

    def none_usable(self, error: InputError) -> RunError:
        """No checkpoint of the run can be used, the oldest because of this error."""
        # Nothing is changed, since what looks like damage may be the fault of another machine or another version.
        return RunError(
            f"{error}; no other in {str(self.run / 'checkpoints')!r} can be used either; nothing was changed; "
            f"to start again at step 0, remove that folder, then: {self.resume_command}"
        )

    def _traceback(self, error: EnvError) -> str:
        """Writes the traceback of an environment's own error into the run folder; says where it is."""
        file = self.run / "error.txt"
        if error.__cause__ is None:
            return ""
        try:
            files.write(file, "".join(format_exception(error.__cause__)))
        except OSError:
            return ""
        return f"; its traceback is in {file}"

    def _last_good(self) -> str:
        if self.last_checkpoint is None:
            return "there is no checkpoint yet"
        return f"last good checkpoint: {self.last_checkpoint}; to resume: {self.resume_command}"
