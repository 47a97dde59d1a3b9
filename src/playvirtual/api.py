"""The Python entry points: train, resume, evaluate, load, export, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from playvirtual.config import Config, with_values
from playvirtual.errors import InputError, writing
from playvirtual.presets import build
from playvirtual.training import bench as benchmark
from playvirtual.training import checkpoint, kept_agent
from playvirtual.training.acting import Acting
from playvirtual.training.arithmetic import set_arithmetic
from playvirtual.training.checkpoint import newest_sound
from playvirtual.training.devices import resolve
from playvirtual.training.evaluate import Watcher, epsilon_greedy
from playvirtual.training.evaluate import evaluate as play_episodes
from playvirtual.training.factory import Agent, make_agent
from playvirtual.training.mirrors import parse
from playvirtual.training.progress import display
from playvirtual.training.run_folder import RunFolder, default_path
from playvirtual.training.session import Run, run

RunOrPath = Run | str | Path  # what `train` returned, or the folder that it wrote


def train(
    task: str,
    *,
    method: str = "playvirtual",
    preset: str = "paper",
    run_dir: str | Path | None = None,
    resume: bool = False,
    log: str = "none",
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Trains an agent and scores it. `options` are fields of the configuration: seed, steps, K, M, …

    With `resume` a run that was stopped goes on where it was, and one that never began begins. `log` names
    mirrors of the run folder: "tensorboard", "wandb" or both with a comma.
    """
    config = build(task, method=method, preset=preset, **options)
    path = Path(run_dir) if run_dir is not None else default_path(config)
    return _run(config, path, resume=resume, log=log, quiet=quiet)


def resume(path: RunOrPath, *, log: str = "none", quiet: bool = False, **options: Any) -> Run:
    """Goes on with the run in that folder; `options`, if any, must be those it was begun with, but for `device`."""
    folder = _open(path)
    config = with_values(folder.config(), options)
    return _run(config, folder.path, resume=True, log=log, quiet=quiet)


def _run(config: Config, path: Path, *, resume: bool, log: str, quiet: bool) -> Run:
    shown = display(f"{config.task} {config.method}", config.steps, quiet=quiet)
    return run(config, path, shown, resume=resume, log=parse(log))


def load(path: RunOrPath, device: str | torch.device = "auto") -> Agent:
    """The agent of a run's newest checkpoint or of an export, ready to act without replay or environment.

    From then on this process computes in the run's precision and, on the CPU, with its number of threads.
    """
    folder = _open(path)
    return _load(folder, _agent_folder(folder), device)


def export(path: RunOrPath, out: str | Path) -> Path:
    """Writes a small folder that `load` takes: the newest checkpoint's weights for acting, and the configuration."""
    folder, target = _open(path), Path(out)
    if target.exists():
        raise InputError(f"out: {str(target)!r} exists already; allowed: a new folder")
    folder.config()  # what `load` could not read is not worth writing
    config = (folder.path / "config.json").read_bytes()
    source = _agent_folder(folder)
    contents = [(name, checkpoint.read(source, name)) for name in kept_agent.FILES]
    with writing("out", target):
        target.mkdir(parents=True)
        checkpoint.write_folder(target, [("config.json", config), *contents])
    return target


def evaluate(
    path: RunOrPath,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    watcher: Watcher | None = None,
) -> list[float]:
    """The returns of whole episodes played by a run's newest checkpoint under its evaluation protocol.

    With neither `episodes` nor `seed` they are those of the run's own evaluation of that checkpoint.
    """
    folder = _open(path)
    given = {"episodes": episodes, "seed": seed}
    config = with_values(folder.config(), {k: v for k, v in given.items() if v is not None})
    source = _agent_folder(folder)
    acting = Acting(_load(folder, source, device), capture=config.capture != "off")
    step = kept_agent.step_of(source)
    policy = epsilon_greedy(acting, config.evaluation.epsilon, np.random.default_rng([config.seed, step]))
    with torch.no_grad():
        return play_episodes(
            policy,
            config,
            episodes=config.evaluation.episodes,
            seed=config.seed,
            step=step,
            watcher=watcher,
        )


def _open(run: RunOrPath) -> RunFolder:
    if not isinstance(run, Run | str | Path):
        raise InputError(f"run: {run!r} is not allowed; allowed: what `pv.train` returned, or a run folder")
    return RunFolder.open(run.path if isinstance(run, Run) else run)


def _agent_folder(folder: RunFolder) -> Path:
    """Where the weights lie: in an export itself, in the newest sound checkpoint of a run."""
    return folder.path if folder.is_export else newest_sound(folder.path, kept_agent.FILES)


def _load(folder: RunFolder, source: Path, device: str | torch.device) -> Agent:
    config, chosen = folder.config(), resolve(device)
    shape, actions = kept_agent.read_shapes(source)
    weights = kept_agent.read_weights(source)
    set_arithmetic(config, chosen)
    agent = make_agent(config, shape, actions, chosen, seed=0)
    agent.load_weights(weights)
    return agent


def bench(
    task: str,
    *,
    method: str = "playvirtual",
    preset: str = "paper",
    repeats: int = benchmark.REPEATS,
    say: benchmark.Say = benchmark.silent,
    **options: Any,
) -> benchmark.Measurement:
    """Times what `train` with the same arguments would do on this machine; `say` hears what is going on."""
    return benchmark.bench(build(task, method=method, preset=preset, **options), repeats=repeats, say=say)
