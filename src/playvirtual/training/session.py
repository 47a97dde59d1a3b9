"""One run from its start, or from its last checkpoint, to its end: the one training loop."""

from __future__ import annotations

import gc
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception_only
from typing import Any

import numpy as np
import numpy.typing as npt

from playvirtual import published
from playvirtual.config import Config
from playvirtual.errors import Crash, InputError, RunError, out_of_memory
from playvirtual.training import checkpoint, frames, journals, kept_agent
from playvirtual.training.clock import Clock
from playvirtual.training.evaluate import Policy
from playvirtual.training.interrupts import Interrupts
from playvirtual.training.lock import locked
from playvirtual.training.loop import Training
from playvirtual.training.mirrors import Mirrors
from playvirtual.training.notice import say
from playvirtual.training.pack import all_finite, pack, to_bytes
from playvirtual.training.progress import Display
from playvirtual.training.restore import Around, load
from playvirtual.training.run_folder import RunFolder
from playvirtual.training.video import Recorder


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies, what decided it, what it scored."""

    path: Path
    config: Config
    returns: list[float]  # of the last evaluation's episodes

    @property
    def score(self) -> float:
        """Mean return of the last evaluation."""
        return float(np.mean(self.returns))

    def __repr__(self) -> str:
        return f"Run(path={str(self.path)!r}, score={self.score:.2f}, episodes={len(self.returns)})"


def run(config: Config, path: Path, display: Display, *, resume: bool = False, log: Sequence[str] = ()) -> Run:
    """Trains to the last step and evaluates; nothing is written if it cannot begin.

    With `resume` a run that is there already goes on from its last good checkpoint, to the bit on the CPU.
    """
    mirrors = Mirrors(log)
    with Interrupts() as stop:
        if not (resume and path.exists()):
            RunFolder.refuse_existing(path)
            with closing(Training(config)) as training:
                folder = RunFolder.create(path)
                with locked(path):
                    RunFolder.refuse_existing(path)  # another process may have begun, and ended, a run there
                    folder.describe(config)
                    return Session(training, folder, display, stop, mirrors).run()
        if not path.is_dir():
            raise InputError(f"run_dir: {str(path)!r} is a file; allowed: a run folder")
        folder = RunFolder(path)
        if folder.is_export:
            raise InputError(f"run: {str(path)!r} is an export, which cannot go on; allowed: the run it was made of")
        with locked(path):
            folder.adopt(config)
            returns = journals.returns(path, _last_step(config))
            if returns is not None:
                say(f"{path} is finished already")
                return Run(path, config, returns)
            resumes = bool(checkpoint.complete(path))
            with closing(Session(Training(config, resumes=resumes), folder, display, stop, mirrors)) as session:
                session.restore()
                return session.run()


class Session:
    """A training, the folder it writes to, and what may befall it."""

    def __init__(
        self, training: Training, folder: RunFolder, display: Display, stop: Interrupts, mirrors: Mirrors
    ) -> None:
        self.training, self.folder, self.display = training, folder, display
        self.stop, self.mirrors = stop, mirrors
        self.clock = Clock()
        self.saved: Path | None = None  # the last good checkpoint
        words = ["playvirtual", "train", "--resume", str(folder.path)]
        self.command = shlex.join([*words, "--log", ",".join(mirrors.names)] if mirrors.names else words)

    def run(self) -> Run:
        """Trains from here to the end."""
        training, config = self.training, self.training.config
        with self._explaining(), closing(self.mirrors), closing(self.display):
            self.mirrors.open(self.folder.path, config, training.counted)
            self.display.begin(min(training.counted, config.steps))
            returns = self._owed_evaluation()
            while not training.done:
                training.advance(self.clock.measure)
                if training.step % config.log_every == 0 or training.done:
                    self._log()
                evaluates = training.done or training.evaluation_due()
                stopping = self.stop.received is not None  # read once: what stops here has been saved here
                if evaluates or training.checkpoint_due() or stopping:
                    self._save()
                if stopping:
                    self.stop.check(self.command)
                if evaluates:
                    returns = self._evaluate()
                self.display.step(min(training.counted, config.steps), training.note())
            return Run(self.folder.path, config, returns)

    def restore(self) -> None:
        """Goes back to the newest checkpoint that can be used; to the start only if none was ever written."""
        found = checkpoint.complete(self.folder.path)
        for at in reversed(range(len(found))):
            self.saved = found[at]
            try:
                with self._explaining():
                    around = load(self.training, found[at])
            except InputError as error:
                if at == 0:
                    raise self._none_usable(error) from None
                say(f"{error}; using the one before")
                self._renew()
                continue
            self._go_on(around, damaged=found[at + 1 :])
            return
        with self._writing():
            journals.rewind(self.folder.path, {}, -1)
        say(f"{self.folder.path}: no checkpoint yet, starting at step 0")

    def _go_on(self, around: Around, damaged: Sequence[Path]) -> None:
        """Takes the folder, too, back to where the checkpoint was made."""
        step = self.training.counted
        self.clock = Clock(around.clock, step)
        with self._writing():
            for each in damaged:
                checkpoint.put_aside(each)
            for line in journals.rewind(self.folder.path, around.positions, step):
                say(line)
        say(f"{self.folder.path}: going on at step {step}")

    def _renew(self) -> None:
        """Begins anew: half of a checkpoint that could not be used may be in the training."""
        config = self.training.config
        self.training.close()
        del self.training  # parts refer to each other: all of it goes before the new one needs the room
        gc.collect()
        self.training = Training(config, resumes=True)

    def _none_usable(self, error: InputError) -> RunError:
        """Nothing is changed, since what looks like damage may be another machine's or another version's fault."""
        return RunError(
            f"{error}; no other in {str(self.folder.path / 'checkpoints')!r} can be used either; nothing was changed; "
            f"to begin again at step 0, remove that folder, then: {self.command}"
        )

    def close(self) -> None:
        """Lets the training go."""
        self.training.close()

    def _owed_evaluation(self) -> list[float]:
        """The evaluation that a resumed run was about to make, or had made, at its checkpoint's step."""
        training = self.training
        if training.step == 0 or not (training.done or training.evaluation_due()):
            return []
        returns = journals.returns(self.folder.path, training.counted)
        if returns is None:
            return self._evaluate()
        training.last_score = float(np.mean(returns))
        return returns

    def _log(self) -> None:
        """One line of metrics, and one of times."""
        self._refuse_nonfinite()
        line, timing = self.training.metrics(), self.clock.line(self.training.counted)
        with self._writing():
            journals.append(self.folder.path, "metrics", line)
            journals.append(self.folder.path, "timing", timing)
        self.mirrors.write("train", line)
        self.mirrors.write("time", timing)

    def _evaluate(self) -> list[float]:
        """Scores the agent as it is now; a signal ends it early, since resuming plays it again."""
        training, config = self.training, self.training.config
        policy = training.policy()
        recorder = Recorder(training.agent) if config.video_at_evaluation else None

        def stoppable(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
            self.stop.check(self.command)
            return policy(observations)

        chosen: Policy = stoppable
        with self.clock.measure("evaluation"):
            returns = training.evaluate(chosen, recorder)
        training.last_score = float(np.mean(returns))
        line: dict[str, Any] = {"step": training.counted, "mean": training.last_score, "std": float(np.std(returns))}
        line |= _normalised(config, training.last_score) | {"returns": returns}
        timing = self.clock.line(training.counted)
        with self._writing():
            journals.append(self.folder.path, "evaluations", line)
            journals.append(self.folder.path, "timing", timing)
            if recorder is not None:
                recorder.save(self.folder.path / "videos" / f"step-{training.counted:09d}")
        self.mirrors.write("evaluation", line)
        return returns

    def _save(self) -> None:
        """Writes a checkpoint, of finite numbers only."""
        training, run = self.training, self.folder.path
        self._refuse_nonfinite()
        with self.clock.measure("checkpoint"):
            tree, tensors = pack(training.state_dict())
            if not all_finite({name: value for name, value in tensors.items() if name.startswith("state.agent")}):
                raise RunError(f"weights: not all of them are finite at step {training.counted}; {self._last_good()}")
            weights, shape = training.agent.weights(), training.observation_shape
            agent = kept_agent.contents(training.counted, weights, shape, training.env.action_space)
            with self._writing():
                positions = journals.positions(run)
                record = {"tree": tree, "positions": positions, "clock": self.clock.seconds()}
                state = {"state.json": json.dumps(record).encode(), "state.safetensors": to_bytes(tensors)}
                contents = [*agent.items(), *state.items(), *frames.files(training.replay)]
                self.saved = checkpoint.save(run, training.counted, contents)

    def _refuse_nonfinite(self) -> None:
        found = self.training.learner.watch.found()
        if found is None:
            return
        step = self.training.step_of_update(found.update)
        record = {"losses": found.losses, "step": step, "update": found.update, "positions": found.positions}
        with self._writing():
            (self.folder.path / "nonfinite.json").write_text(json.dumps(record, indent=2) + "\n")
        raise RunError(
            f"{', '.join(found.losses)}: not finite at step {step} (update {found.update}); its batch is in "
            f"{self.folder.path / 'nonfinite.json'}; {self._last_good()}"
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns a full disk, a read-only or vanished folder into one line that says what is safe."""
        try:
            yield
        except OSError as error:
            if not self.folder.path.is_dir():
                raise RunError(f"run folder: {str(self.folder.path)!r} is gone, with its checkpoints") from error
            where = error.filename or self.folder.path
            raise RunError(f"cannot write {str(where)!r}: {error.strerror}; {self._last_good()}") from error

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Says what is safe after an error that nobody foresaw, too, an environment's or one of ours."""
        try:
            yield
        except (InputError, RunError):
            raise
        except Exception as error:
            memory = out_of_memory(error) if isinstance(error, (MemoryError, RuntimeError)) else None
            if memory is not None:
                raise RunError(f"{memory}; {self._last_good()}") from error
            reason = " ".join("".join(format_exception_only(error)).split())
            raise Crash(f"{reason}; {self._last_good()}") from error

    def _last_good(self) -> str:
        if self.saved is None:
            return "there is no checkpoint yet"
        return f"last good checkpoint: {self.saved}; to go on: {self.command}"


def _last_step(config: Config) -> int:
    """The step of a run's last evaluation: the first at or after `steps` that a whole agent step reaches."""
    return config.agent_steps * config.unit


def _normalised(config: Config, score: float) -> dict[str, float]:
    """The human-normalised score, for the games that have one."""
    family, _, game = config.task.partition("/")
    return {"hns": float(published.hns(game, score))} if family == "atari" and game in published.human() else {}
