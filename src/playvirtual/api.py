"""The Python entry points: train, resume, evaluate, load, export, benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from playvirtual import files
from playvirtual.bench import measure
from playvirtual.config.build import build
from playvirtual.config.schema import Config, with_values
from playvirtual.envs import factories, to_frame_of
from playvirtual.envs.arguments import as_texts
from playvirtual.envs.factories import Factory
from playvirtual.errors import InputError, writing
from playvirtual.messages import log_to_stderr_by_default
from playvirtual.options import LARGEST_INT, coerce
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import POLICY_FILES, load_agent, policy_folder, read_native_action_space, read_step
from playvirtual.runs.folder import RunFolder, default_path
from playvirtual.runs.loggers import parse
from playvirtual.runs.portable import portable_policy
from playvirtual.runs.trained_agent import TrainedAgent
from playvirtual.training.evaluation import Watcher, evaluation_policy
from playvirtual.training.evaluation import evaluate as evaluate_policy
from playvirtual.training.policy import AsyncPolicy
from playvirtual.training.progress import display
from playvirtual.training.runner import Run, run

RunOrPath = Run | str | Path  # what `train` returned, or the folder that it wrote


def train(
    task: str | None = None,
    *,
    env: Factory | None = None,
    method: str = "playvirtual",
    preset: str = "paper",
    run_dir: str | Path | None = None,
    resume: bool = False,
    log: str = "none",
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Trains an agent and scores it. `options` are fields of the configuration: seed, steps, K, M, …

    In place of a task, `env` is a function or class that makes a `gymnasium.Env`, called with the option `env_args`. If
    it can be imported, the run's task is env/module:name, which the command line can play as well.

    With `resume` a run that was stopped resumes where it was, and one that was never started starts. `log` names
    loggers beside the run folder: "tensorboard", "wandb" or both with a comma.
    """
    if env is not None:
        task = _task_of(task, env, run_dir if resume else None)
    elif task is None:
        raise InputError("task: none is given; allowed: a name such as 'toy/catch', or env=… for one of your own")
    config = build(task, method=method, preset=preset, **options)
    path = Path(run_dir) if run_dir is not None else default_path(config)
    return _run(config, path, resume=resume, log=log, quiet=quiet)


def _task_of(task: str | None, env: Factory, resumed: str | Path | None) -> str:
    """The task that `env` makes: the one that is given, or that the resumed run has, or one named after `env`."""
    if task is None and resumed is not None and files.is_file(Path(resumed) / "config.json", "run_dir"):
        recorded = str(RunFolder(resumed).record().get("task"))
        task = recorded if factories.is_handed_over(recorded) else None
    if task is None:
        return factories.task_of(env)
    factories.hand_over(task, env)
    return task


def resume(
    path: RunOrPath,
    *,
    env: Factory | None = None,
    log: str = "none",
    quiet: bool = False,
    trust_env: bool = False,
    **options: Any,
) -> Run:
    """Resumes the run in that folder; `options`, if any, must be those it was started with, but for `device`.

    `env` makes the environments of a run that was trained with one. `trust_env` allows to import the modules that the
    folder names (gym/module:Name-v0, env/module:name, `imports`).
    """
    folder = open_run(path)
    if "env_args" in options:
        options["env_args"] = as_texts(options["env_args"])
    config = with_values(_trusted_config(path, folder, env, trust_env=trust_env), options)
    return _run(config, folder.path, resume=True, log=log, quiet=quiet)


def _run(config: Config, path: Path, *, resume: bool, log: str, quiet: bool) -> Run:
    log_to_stderr_by_default()
    shown = display(f"{config.task} {config.method}", config.steps, quiet=quiet)
    return run(config, path, shown, resume=resume, log=parse(log), announce=not quiet)


def load(path: RunOrPath, device: str | torch.device = "auto", *, num_envs: int | None = None) -> TrainedAgent:
    """The agent of a run's newest checkpoint or of an export, ready to act without replay or environment.

    It takes the environment's raw observations, of `num_envs` environments side by side where that is given. From then
    on this process computes in the run's precision and, on the CPU, with its number of threads.
    """
    if num_envs is not None and not 1 <= coerce("num_envs", int, num_envs) <= LARGEST_INT:
        raise InputError(f"num_envs: {num_envs} is not allowed; allowed: 1 or more, or None for one environment")
    folder = open_run(path)
    config, source = folder.config(), policy_folder(folder)
    agent = load_agent(config, source, device)
    space = read_native_action_space(source)
    return TrainedAgent(agent, config.environment, to_frame_of(config.task), space, num_envs)


def export(path: RunOrPath, out: str | Path, *, format: str = "safetensors") -> Path:
    """Writes a small folder that `load` takes: the newest checkpoint's weights for acting, and the configuration.

    With `format` "torchscript" or "onnx" the acting network is written beside them as a file of that format, which
    needs no part of this package.
    """
    return write_export(out, export_files(open_run(path), out, format))


def export_files(folder: RunFolder, out: str | Path, format: str = "safetensors") -> list[tuple[str, bytes]]:
    """What an export to the new folder `out` consists of; raises where `out` exists or the agent cannot be loaded."""
    if files.kind(Path(out), "out") is not None or Path(out).is_symlink():
        raise InputError(f"out: {str(out)!r} exists already; allowed: a new folder")
    # What cannot be loaded is not worth writing.
    agent = load_agent(folder.config(), source := policy_folder(folder), "cpu")
    contents = [("config.json", files.read(folder.path / "config.json", "run", files.RECORD_BYTES))]
    contents += [(name, checkpoint.read(source, name)) for name in POLICY_FILES]
    return contents if format == "safetensors" else [*contents, portable_policy(agent, format)]


def write_export(out: str | Path, contents: Iterable[tuple[str, bytes]]) -> Path:
    """Makes the new folder `out` with these files and their checksums."""
    with writing("out", target := Path(out)):
        checkpoint.write_new_folder(target, contents)
    return target


def evaluate(
    path: RunOrPath,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    watcher: Watcher | None = None,
    env: Factory | None = None,
    trust_env: bool = False,
) -> list[float]:
    """The returns of whole episodes played by a run's newest checkpoint under its evaluation protocol.

    With neither `episodes` nor `seed` they are those of the run's own evaluation of that checkpoint. `env` and
    `trust_env` are as in `resume`.
    """
    folder = open_run(path)
    if episodes is not None and not 1 <= coerce("episodes", int, episodes) <= LARGEST_INT:
        raise InputError(f"episodes: {episodes} is not allowed; allowed: 1 or more")
    given = {"eval_episodes": episodes, "seed": seed}
    config = _trusted_config(path, folder, env, trust_env=trust_env)
    config = with_values(config, {k: v for k, v in given.items() if v is not None})
    source = policy_folder(folder)
    agent = load_agent(config, source, device)
    step = read_step(source)
    policy = evaluation_policy(AsyncPolicy(agent, cudagraph=config.compile != "off"), config, step)
    with torch.no_grad():
        return evaluate_policy(
            policy,
            config,
            episodes=config.evaluation.eval_episodes,
            seed=config.seed,
            step=step,
            watcher=watcher,
        )


def _trusted_config(run: RunOrPath, folder: RunFolder, env: Factory | None, *, trust_env: bool) -> Config:
    """The folder's configuration, if it may be played: a run that this process has made is trusted.

    With `env` nothing that the folder names as its environment is imported.
    """
    if env is not None:
        factories.hand_over(str(folder.record().get("task")), env)
    return folder.trusted_config(trust_env=trust_env or isinstance(run, Run), makes_env=env is None)


def open_run(run: RunOrPath) -> RunFolder:
    """The folder of a run or an export."""
    log_to_stderr_by_default()
    if not isinstance(run, Run | str | Path):
        raise InputError(f"run: {run!r} is not allowed; allowed: what `pv.train` returned, or a run folder")
    return RunFolder.open(run.path if isinstance(run, Run) else run)


def benchmark(
    task: str,
    *,
    method: str = "playvirtual",
    preset: str = "paper",
    repeats: int = measure.REPEATS,
    **options: Any,
) -> measure.Measurement:
    """Times what `train` with the same arguments would do on this machine."""
    log_to_stderr_by_default()
    return measure.bench(build(task, method=method, preset=preset, **options), repeats=repeats)
