"""A run: a trainer and the folder it writes to, from its start or its last checkpoint to its last evaluation."""

from __future__ import annotations

import gc
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from playvirtual import envs, files
from playvirtual.config.fit import reasons
from playvirtual.config.schema import Config
from playvirtual.device import configure_torch, num_threads
from playvirtual.errors import InputError, shown
from playvirtual.files import Unreadable
from playvirtual.messages import logger
from playvirtual.method.projection import COLLAPSED
from playvirtual.runs import checkpoint, jsonl, stopped
from playvirtual.runs.atomic_io import RunLock, lock_run_folder
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.loggers import Loggers
from playvirtual.runs.stopped import Stopped
from playvirtual.training.callbacks import CallbackFailed, Callbacks, CheckpointEvent, EvaluationEvent, StepEvent
from playvirtual.training.checkpointing import NonFiniteWeights, RunPosition, checkpoint_files, restore
from playvirtual.training.clock import Clock
from playvirtual.training.display.estimate import estimate_lines, is_worth_measuring, measure
from playvirtual.training.display.progress import Display, Pace
from playvirtual.training.display.video import Recorder
from playvirtual.training.evaluation import evaluation_line
from playvirtual.training.failures import Failures
from playvirtual.training.interrupts import Interrupts
from playvirtual.training.trainer import Trainer

MANY_UPDATES = 1_000  # after fewer, networks that will learn may still see states alike


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its configuration, its score."""

    path: Path
    config: Config
    returns: list[float]  # of the last evaluation's episodes
    stopped: str = ""  # why it ended before its last step; "": it did not

    @property
    def score(self) -> float:
        """Mean return of the last evaluation."""
        return float(np.mean(self.returns))

    def __repr__(self) -> str:
        early = f", stopped={self.stopped!r}" if self.stopped else ""
        return f"Run(path={str(self.path)!r}, score={self.score:.2f}, episodes={len(self.returns)}{early})"


class _EarlyStop(Exception):
    """Leaves the training loop; the reason is the runner's."""


def run(
    config: Config,
    path: Path,
    display: Display,
    *,
    resume: bool = False,
    log: Sequence[str] = (),
    announce: bool = False,
    callbacks: Sequence[object] = (),
) -> Run:
    """Trains to the last step and evaluates; nothing is written if the run cannot start.

    With `resume` an existing run resumes from its last good checkpoint, bit-exact on the CPU. With `announce` messages
    say first which settings were fitted to the task and how long the run will take.
    """
    loggers, called = Loggers(log), Callbacks(callbacks)
    with Interrupts() as interrupts:
        make_runner = partial(
            Runner, display=display, interrupts=interrupts, loggers=loggers, callbacks=called, announce=announce
        )
        if resume and files.kind(path, "run_dir") is not None:
            return _resume(config, path, make_runner)
        return _start(config, path, make_runner)


def _start(config: Config, path: Path, make_runner: Callable[[Trainer, RunFolder, RunLock], Runner]) -> Run:
    """Trains a new run, whose folder is made once its trainer could be."""
    RunFolder.refuse_existing(path)
    with closing(Trainer(config)) as trainer:
        folder = RunFolder.create(path)
        with lock_run_folder(path) as lock:
            RunFolder.refuse_existing(path)  # another process may have started, and ended, a run there
            folder.write_config(config)
            return make_runner(trainer, folder, lock).train()


def _resume(config: Config, path: Path, make_runner: Callable[[Trainer, RunFolder, RunLock], Runner]) -> Run:
    """Resumes a run from its last good checkpoint; one that is finished, or was stopped early, is returned as it is."""
    if files.kind(path, "run_dir") != "folder":
        raise InputError(f"run_dir: {shown(path)} is a file; allowed: a run folder")
    folder = RunFolder(path)
    if folder.is_export:
        raise InputError(f"run: {str(path)!r} is an export, which cannot be resumed; allowed: the run it was made of")
    with lock_run_folder(path) as lock:
        folder.check_same_config(config)
        jsonl.check_regular(path)
        returns = jsonl.returns(path, config.agent_steps * config.frames_per_step)  # of the last evaluation
        if returns is not None:
            logger.info(f"{path} is finished already; more steps extend it")
            return Run(path, config, returns)
        early, own = stopped.read(path), folder.config()
        if early is not None and (own.steps, own.stop_at_score) == (config.steps, config.stop_at_score):
            further = "more steps continue" if own.stop_at_score is None else "another stop_at_score continues"
            logger.info(f"{path} was stopped at step {early.step} ({early.reason}); {further} it")
            return Run(path, config, jsonl.returns(path, early.step) or [], early.reason)
        trainer = Trainer(config, resumes=bool(checkpoint.complete(path)))
        with closing(make_runner(trainer, folder, lock)) as runner:
            runner.resume()
            folder.record_changes(config, runner.trainer.global_step)
            stopped.remove(path)
            return runner.train()


class Runner:
    """Puts a run folder around a trainer: logs, checkpoints, evaluations, signals and failures.

    Whatever makes a run fail, its error names the last good checkpoint and the command that resumes the run.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        lock: RunLock,
        display: Display,
        interrupts: Interrupts,
        loggers: Loggers,
        callbacks: Callbacks,
        *,
        announce: bool = False,
    ) -> None:
        self.announce = announce
        self.trainer, self.folder, self.display = trainer, folder, display
        self.interrupts, self.loggers, self.callbacks = interrupts, loggers, callbacks
        self._stop = ""  # why the run ends after the present step, if it does
        self.returns: list[float] = []  # of the last evaluation
        words = ["playvirtual", "train", "--resume", str(folder.path)]
        words += ["--trust-env"] if envs.executed_modules(trainer.config.task, trainer.config.imports) else []
        self.resume_command = shlex.join([*words, "--log", ",".join(loggers.names)] if loggers.names else words)
        self.failures = Failures(folder.path, lock, self.resume_command, self._present_step)
        self._episodes = 0  # that had begun before the present step
        self._collapse_told = False
        trainer.clock = Clock()  # the time to build the trainer is not part of the run's

    def train(self) -> Run:
        """Trains to the last step."""
        trainer, config = self.trainer, self.trainer.config
        with self.failures.of_training(), closing(self.loggers), closing(self.display):
            self.loggers.open(self.folder.path, config, trainer.global_step)
            self.display.begin(min(trainer.global_step, config.steps), self._announced_pace())
            self._episodes = trainer.env.num_episodes
            with suppress(_EarlyStop):
                self._repeat_evaluation_of_checkpoint()
                trainer.train(after_step=self._after_step)
            early = "" if trainer.done else self._stop
            with self.failures.of_writing():
                jsonl.sync(self.folder.path)
                if early:
                    stopped.write(self.folder.path, Stopped(trainer.global_step, early))
            return Run(self.folder.path, config, self.returns, early)

    def _announced_pace(self) -> Pace:
        """Says how the settings were chosen and how long the run will take; what the display may know of that."""
        trainer, config = self.trainer, self.trainer.config
        starts = config.replay.learning_starts * config.frames_per_step
        if not self.announce:
            return Pace(starts)
        for line in reasons(config, on_gpu=trainer.device.type == "cuda"):
            logger.info(line)
        if not is_worth_measuring(config, config.agent_steps - trainer.step):
            return Pace(starts)
        begin, threads = time.monotonic(), num_threads(trainer.device)
        estimate = measure(config)
        configure_torch(trainer.device, config.precision, threads)  # a resumed run may have its own number
        for line in estimate_lines(estimate, config, trainer.device, trainer.step):
            logger.info(line)
        trainer.clock.leave_out(time.monotonic() - begin)
        return Pace(starts, estimate.learning_step(config) / config.frames_per_step)

    def _after_step(self) -> None:
        """The hook of the training loop: log, checkpoint, stop, evaluate, each when it is due."""
        trainer, config = self.trainer, self.trainer.config
        line = self._log() if trainer.step % config.log_every == 0 or trainer.done else None
        self._tell_step(line)
        evaluates = trainer.done or evaluation_due(config, trainer.step)
        stops = self.interrupts.received is not None  # read once: a run that stops here has a checkpoint of this step
        if evaluates or stops or self._stop or checkpoint_due(config, trainer.step):
            self.save()
        if stops:
            self.interrupts.check(self.resume_command)
        if evaluates or self._stop:
            self._evaluate()
        self.display.step(min(trainer.global_step, config.steps), self._progress_note())
        self._end_if_stopped()

    def _end_if_stopped(self) -> None:
        """Leaves the training loop if the score, or a callback, asks for it."""
        if self._stop:
            raise _EarlyStop

    def _tell_step(self, line: Mapping[str, Any] | None) -> None:
        """Tells the callbacks of the step that was taken."""
        trainer = self.trainer
        ended, self._episodes = trainer.env.num_episodes != self._episodes, trainer.env.num_episodes
        self._tell("on_step", StepEvent, trainer.learner.updates, trainer.last_return if ended else None, line)

    def _tell(self, method: str, event: Callable[..., Any], *about: Any) -> None:
        """Calls a method of every callback; one that raises fails the run, with a checkpoint of this step."""
        if not self.callbacks.wants(method):
            return
        trainer = self.trainer
        try:
            given = event(self.folder.path, trainer.config, trainer.agent, trainer.global_step, *about)
            self._stop = self.callbacks.call(method, given) or self._stop
        except CallbackFailed as failed:
            if method == "on_step":
                self._write_checkpoint()
            raise self.failures.of_callback(str(failed), failed.error, trainer.global_step) from failed.error

    def resume(self) -> None:
        """Restores the newest usable checkpoint; starts at step 0 only if none was ever written."""
        found = checkpoint.complete(self.folder.path)
        for at in reversed(range(len(found))):
            self.failures.last_checkpoint = found[at]
            try:
                with self.failures.of_training():
                    position = restore(self.trainer, found[at])
            except InputError as error:
                if isinstance(error, Unreadable) and error.refused:  # it may be in order: nothing is taken for lost
                    raise
                if at == 0:
                    raise self.failures.none_usable(error) from None
                logger.warning(f"{error}; using the one before")
                self._renew_trainer()
                continue
            self._rewind_folder(position, damaged=found[at + 1 :])
            return
        with self.failures.of_writing():
            jsonl.rewind(self.folder.path, {}, -1)
        logger.info(f"{self.folder.path}: no checkpoint yet, starting at step 0")

    def _rewind_folder(self, position: RunPosition, damaged: Sequence[Path]) -> None:
        """Restores the folder to the state of the checkpoint."""
        step = self.trainer.global_step
        self.trainer.clock = Clock(position.clock, step)
        with self.failures.of_writing():
            for path in damaged:
                checkpoint.quarantine(path)
            for problem in jsonl.rewind(self.folder.path, position.log_sizes, step):
                logger.warning(problem)
        logger.info(f"{self.folder.path}: resuming at step {step}")

    def _renew_trainer(self) -> None:
        """Replaces the trainer, into which a part of an unusable checkpoint may have been loaded."""
        config = self.trainer.config
        self.trainer.close()
        del self.trainer  # its parts refer to each other: all of it must go before the new one needs the memory
        gc.collect()
        self.trainer = Trainer(config, resumes=True)

    def close(self) -> None:
        """Closes the trainer; there is none if the one that should replace another could not be made."""
        if "trainer" in vars(self):
            self.trainer.close()

    def _repeat_evaluation_of_checkpoint(self) -> None:
        """Makes, or reads from the log, the evaluation that was due at the step of a resumed run's checkpoint."""
        trainer = self.trainer
        if trainer.step == 0 or not (trainer.done or evaluation_due(trainer.config, trainer.step)):
            return
        returns = jsonl.returns(self.folder.path, trainer.global_step)
        if returns is None:
            self._evaluate()
        else:
            self.returns = returns
            self._stop_at_score()
        self._end_if_stopped()

    def _stop_at_score(self) -> None:
        """Ends the run after this step if the evaluation reached the score that it is to stop at."""
        score, wanted = float(np.mean(self.returns)), self.trainer.config.stop_at_score
        if wanted is not None and score >= wanted:
            self._stop = f"the mean return {score:g} reaches stop_at_score {wanted:g}"

    def _log(self) -> dict[str, Any]:
        """Writes one line of metrics, which is returned, and one of timing."""
        self._refuse_nonfinite_losses()
        line, timing = self.trainer.metrics(), self.trainer.clock.line(self.trainer.global_step)
        with self.failures.of_writing():
            jsonl.append(self.folder.path, "metrics", line)
            jsonl.append(self.folder.path, "timing", timing)
        self.loggers.write("train", line)
        self.loggers.write("time", timing)
        self._tell_collapse(line)
        return line

    def _tell_collapse(self, line: Mapping[str, Any]) -> None:
        """Says once, after half of the steps, that all states look alike to the agent."""
        step, spread = line["step"], line.get("target_spread", 1.0)
        late = 2 * step >= self.trainer.config.steps and self.trainer.learner.updates >= MANY_UPDATES
        if late and spread < COLLAPSED and not self._collapse_told:
            self._collapse_told = True
            logger.warning(
                f"step {step}: all states look alike to the agent (target_spread {spread:.1g}), so that its small "
                "prediction loss says nothing"
            )

    def _evaluate(self) -> None:
        """Scores the agent as it is now; a signal aborts the evaluation, which is repeated after resuming."""
        trainer, config = self.trainer, self.trainer.config
        policy = trainer.evaluation_policy()
        recorder = Recorder(trainer.agent) if config.video_at_evaluation else None

        def interruptible(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
            self.interrupts.check(self.resume_command)
            return policy(observations)

        def progress(ended: int, steps: int) -> None:
            self.display.evaluation(ended, config.evaluation.eval_episodes, steps)

        with trainer.clock.measure("evaluation"):
            self.returns = trainer.evaluate(interruptible, recorder, progress)
        step, score = trainer.global_step, float(np.mean(self.returns))
        line = evaluation_line(config, step, self.returns)
        timing, video = trainer.clock.line(step), None
        with self.failures.of_writing():
            jsonl.append(self.folder.path, "evaluations", line)
            jsonl.append(self.folder.path, "timing", timing)
            if recorder is not None:
                video = recorder.save(self.folder.path / "videos" / f"step-{step:09d}")
        self.loggers.write("evaluation", line)
        if recorder is not None and video is not None:
            self.loggers.write_video("evaluation/video", video, recorder.gif, step)
        self._stop_at_score()
        self._tell("on_evaluation", EvaluationEvent, score, list(self.returns), video)

    def save(self) -> None:
        """Writes a checkpoint, unless a loss or a weight is not finite, and tells the callbacks."""
        self._tell("on_checkpoint", CheckpointEvent, self._write_checkpoint())

    def _write_checkpoint(self) -> Path:
        """Writes a checkpoint of this step; raises a RunError if a loss or a weight is not finite."""
        trainer, path = self.trainer, self.folder.path
        self._refuse_nonfinite_losses()
        with trainer.clock.measure("checkpoint"), self.failures.of_writing():
            position = RunPosition(jsonl.synced_sizes(path), trainer.clock.seconds())
            try:
                contents = checkpoint_files(trainer, position)
            except NonFiniteWeights:
                problem = f"weights: not all of them are finite at step {trainer.global_step}"
                raise self.failures.error(problem) from None
            saved = self.failures.last_checkpoint = checkpoint.save(path, trainer.global_step, contents)
        return saved

    def _refuse_nonfinite_losses(self) -> None:
        """Raises a RunError at the first update with a non-finite loss, whose batch it records in nonfinite.json."""
        found = self.trainer.learner.guard.found()
        if found is None:
            return
        step = self.trainer.step_of_update(found.update)
        record = {"losses": found.losses, "step": step, "update": found.update, "positions": found.positions}
        with self.failures.of_writing():
            files.write(self.folder.path / "nonfinite.json", json.dumps(record, indent=2) + "\n")
        raise self.failures.error(
            f"{', '.join(found.losses)}: not finite at step {step} (update {found.update}); its batch is in "
            f"{self.folder.path / 'nonfinite.json'}"
        )

    def _present_step(self) -> int:
        """The global step that is being taken, or after which the agent is evaluated."""
        return min(self.trainer.global_step + self.trainer.config.frames_per_step, self.trainer.config.steps)

    def _progress_note(self) -> str:
        """The last episode's return and the last evaluation's score."""
        score = float(np.mean(self.returns)) if self.returns else None
        results = [("return", self.trainer.last_return), ("score", score)]
        return ", ".join(f"{name} {value:.1f}" for name, value in results if value is not None)


def evaluation_due(config: Config, step: int) -> bool:
    """Whether agent step `step` reached or crossed a multiple of the evaluation interval."""
    interval, global_step = config.evaluation.eval_every, step * config.frames_per_step
    return interval > 0 and global_step // interval > (global_step - config.frames_per_step) // interval


def checkpoint_due(config: Config, step: int) -> bool:
    """Whether agent step `step` is a multiple of the checkpoint interval."""
    return config.checkpoint_every > 0 and step % config.checkpoint_every == 0
