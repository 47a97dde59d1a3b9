"""The Python entry points: train, configure, resume, evaluate, video, load, export, benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from playvirtual import files
from playvirtual.agents.agent import Agent
from playvirtual.bench import measure
from playvirtual.config import sources
from playvirtual.config.build import build
from playvirtual.config.schema import Config, with_values
from playvirtual.envs import check_trusted
from playvirtual.errors import InputError, shown, writing
from playvirtual.messages import log_to_stderr_by_default
from playvirtual.options import LARGEST_INT, coerce
from playvirtual.runs import checkpoint
from playvirtual.runs.agents import POLICY_FILES, load_agent, policy_folder, read_step
from playvirtual.runs.folder import RunFolder, default_path
from playvirtual.runs.loggers import parse
from playvirtual.training.evaluation import Policy, Progress, Watcher, evaluation_policy
from playvirtual.training.evaluation import evaluate as evaluate_policy
from playvirtual.training.policy import AsyncPolicy
from playvirtual.training.progress import display
from playvirtual.training.runner import Run, run
from playvirtual.training.video import film

MOST_FILMED = 25  # episodes side by side
RunOrPath = Run | str | Path  # what `train` returned, or the folder that it wrote
Start = str | Path | Mapping[str, Any] | Config  # a task, or a configuration: itself, as a mapping or a TOML file


def train(
    task: Start | None = None,
    *,
    config: Start | None = None,
    like: RunOrPath | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    log: str = "none",
    quiet: bool = False,
    trust_env: bool = False,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> Run:
    """Trains an agent and scores it. `options` are method, preset, and fields of the configuration: seed, steps, K, …

    In place of a task, or as `config` beside it, stands a `Config`, a mapping of options or the path of a TOML file;
    `like` is a run whose configuration is the starting point. What is named later wins: `like`, `config`, the task,
    single options. `trust_env` allows to import the module that a file's task names (gym/module:Name-v0).

    With `resume` a run that was stopped resumes where it was, and one that was never started starts. `log` names
    loggers beside the run folder: "tensorboard", "wandb" or both with a comma. `callbacks` are called after steps,
    evaluations and checkpoints (see `Callback`); they belong to this call, not to the configuration.
    """
    chosen = configure(task, config=config, like=like, trust_env=trust_env, **options)
    path = Path(run_dir) if run_dir is not None else default_path(chosen)
    return _run(chosen, path, resume=resume, log=log, quiet=quiet, callbacks=callbacks)


def configure(
    task: Start | None = None,
    *,
    config: Start | None = None,
    like: RunOrPath | None = None,
    trust_env: bool = False,
    **options: Any,
) -> Config:
    """The configuration that `train` with the same arguments uses."""
    found = []
    if like is not None:
        folder = _open(like)
        foreign = not isinstance(like, Run)
        found.append(sources.from_config(folder.config(), f"like: {str(folder.path)!r}", foreign=foreign))
    if config is not None:
        found.append(_source(config))
    if task is not None:
        found.append(_source(task) if _is_source(task) else sources.Source({"task": task}))
    return sources.configuration([*found, sources.Source(options)], trust_env=trust_env)


def _is_source(start: Any) -> bool:
    """Whether it is a configuration or the path of one, and not the name of a task."""
    return isinstance(start, Config | Mapping | Path) or (isinstance(start, str) and start.endswith(".toml"))


def _source(start: Any) -> sources.Source:
    if isinstance(start, Config):
        return sources.from_config(start)
    if isinstance(start, Mapping):
        return sources.from_mapping(start)
    if isinstance(start, str | Path):
        return sources.from_toml(start)
    raise InputError(f"config: {shown(start)} is not allowed; allowed: a Config, a mapping, or the path of a TOML file")


def resume(
    path: RunOrPath,
    *,
    log: str = "none",
    quiet: bool = False,
    trust_env: bool = False,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> Run:
    """Resumes the run in that folder; `options`, if any, must be those it was started with.

    What may differ is `device`, `stop_at_score`, and `steps`: with more of them a run, finished or not, is extended.
    `trust_env` allows to import the module that the folder's task names (gym/module:Name-v0).
    """
    folder = _open(path)
    config = with_values(folder.config(), options)
    _check_trusted(path, config, trust_env=trust_env)
    return _run(config, folder.path, resume=True, log=log, quiet=quiet, callbacks=callbacks)


def _run(config: Config, path: Path, *, resume: bool, log: str, quiet: bool, callbacks: Sequence[object]) -> Run:
    log_to_stderr_by_default()
    progress = display(f"{config.task} {config.method}", config.steps, quiet=quiet)
    return run(config, path, progress, resume=resume, log=parse(log), callbacks=callbacks)


def load(path: RunOrPath, device: str | torch.device = "auto") -> Agent:
    """The agent of a run's newest checkpoint or of an export, ready to act without replay or environment.

    From then on this process computes in the run's precision and, on the CPU, with its number of threads.
    """
    folder = _open(path)
    return load_agent(folder.config(), policy_folder(folder), device)


def export(path: RunOrPath, out: str | Path) -> Path:
    """Writes a small folder that `load` takes: the newest checkpoint's weights for acting, and the configuration."""
    folder, target = _open(path), Path(out)
    if files.kind(target, "out") is not None or target.is_symlink():
        raise InputError(f"out: {str(target)!r} exists already; allowed: a new folder")
    load_agent(folder.config(), source := policy_folder(folder), "cpu")  # what cannot be loaded is not worth writing
    config = files.read(folder.path / "config.json", "run", files.RECORD_BYTES)
    contents = [(name, checkpoint.read(source, name)) for name in POLICY_FILES]
    with writing("out", target):
        checkpoint.write_new_folder(target, [("config.json", config), *contents])
    return target


def evaluate(
    path: RunOrPath,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    watcher: Watcher | None = None,
    progress: Progress | None = None,
    trust_env: bool = False,
) -> list[float]:
    """The returns of whole episodes played by a run's newest checkpoint under its evaluation protocol.

    With neither `episodes` nor `seed` they are those of the run's own evaluation of that checkpoint. `progress` is
    called with the episodes that have ended and the steps so far. `trust_env` allows to import the module that the
    folder's task names (gym/module:Name-v0).
    """
    played = _player(path, episodes=episodes, seed=seed, device=device, trust_env=trust_env)
    with torch.no_grad():
        return evaluate_policy(
            played.policy,
            played.config,
            episodes=played.config.evaluation.eval_episodes,
            seed=played.config.seed,
            step=played.step,
            watcher=watcher,
            progress=progress,
        )


def video(
    path: RunOrPath,
    out: str | Path | None = None,
    *,
    episodes: int = 4,
    frames: int = 1_000,
    seed: int | None = None,
    device: str | torch.device = "auto",
    trust_env: bool = False,
) -> tuple[Path, list[float]]:
    """Films episodes of a run's newest checkpoint side by side; returns the file and the episodes' returns.

    `out` is the file's name without its ending, by default one in the run's folder `videos`. At most `frames` frames of
    each episode are shown.
    """
    for name, value, most in (("episodes", episodes, MOST_FILMED), ("frames", frames, LARGEST_INT)):
        if not 1 <= coerce(name, int, value) <= most:
            raise InputError(f"{name}: {value} is not allowed; allowed: 1 to {most}")
    played = _player(path, episodes=episodes, seed=seed, device=device, trust_env=trust_env)
    given = {"episodes": episodes, "seed": played.config.seed, "step": played.step, "limit": frames}
    with torch.no_grad():
        recorder, returns = film(played.agent, played.policy, played.config, **given)
    target = Path(out) if out else played.folder / "videos" / f"episodes-{episodes}-seed-{played.config.seed}"
    with writing("out" if out else "video", target):
        return recorder.save(target), returns


class _Player(NamedTuple):
    """A trained agent with what its evaluation needs."""

    folder: Path
    config: Config
    agent: Agent
    policy: Policy
    step: int


def _player(
    path: RunOrPath, *, episodes: int | None, seed: int | None, device: str | torch.device, trust_env: bool
) -> _Player:
    """The agent of a run or an export, with its configuration for so many episodes of that seed."""
    folder = _open(path)
    if episodes is not None and not 1 <= coerce("episodes", int, episodes) <= LARGEST_INT:
        raise InputError(f"episodes: {episodes} is not allowed; allowed: 1 or more")
    given = {"eval_episodes": episodes, "seed": seed}
    config = with_values(folder.config(), {k: v for k, v in given.items() if v is not None})
    _check_trusted(path, config, trust_env=trust_env)
    source = policy_folder(folder)
    agent = load_agent(config, source, device)
    step = read_step(source)
    policy = evaluation_policy(AsyncPolicy(agent, cudagraph=config.compile != "off"), config, step)
    return _Player(folder.path, config, agent, policy, step)


def _check_trusted(run: RunOrPath, config: Config, *, trust_env: bool) -> None:
    """Raises if the folder's task would execute a module; a run that this process has made is trusted."""
    check_trusted(config.task, f"the run folder {str(run)!r}", trust_env=trust_env or isinstance(run, Run))


def _open(run: RunOrPath) -> RunFolder:
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
