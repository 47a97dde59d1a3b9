"""The Python entry points: train, evaluate, load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from playvirtual.presets import build
from playvirtual.training import checkpoint
from playvirtual.training.devices import resolve
from playvirtual.training.evaluate import Watcher
from playvirtual.training.evaluate import evaluate as play_episodes
from playvirtual.training.factory import Agent, make_agent
from playvirtual.training.loop import Run, greedy, run
from playvirtual.training.progress import display
from playvirtual.training.run_folder import RunFolder, default_path


def train(
    task: str,
    *,
    method: str = "playvirtual",
    preset: str = "paper",
    run_dir: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Trains an agent and scores it. `options` are fields of the configuration: seed, steps, K, M, …"""
    config = build(task, method=method, preset=preset, **options)
    path = Path(run_dir) if run_dir is not None else default_path(config)
    return run(config, path, display(f"{task} {method}", config.steps, quiet=quiet))


def load(path: str | Path, device: str = "auto") -> Agent:
    """The agent of a run's newest checkpoint, ready to act; needs neither replay nor environment."""
    folder = RunFolder.open(path)
    weights, record, actions = checkpoint.read(checkpoint.newest(folder.path))
    c, h, w = record["observation_shape"]
    agent = make_agent(folder.config(), (c, h, w), actions, resolve(device), seed=0)
    agent.load_weights(weights)
    return agent


def evaluate(
    path: str | Path,
    *,
    episodes: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    watcher: Watcher | None = None,
) -> list[float]:
    """The returns of whole episodes played by a run's newest checkpoint under its evaluation protocol."""
    config = RunFolder.open(path).config()
    agent = load(path, device)
    chosen = config.seed if seed is None else seed
    policy = greedy(agent, config.evaluation.epsilon, np.random.default_rng([chosen, 1]))
    with torch.no_grad():
        return play_episodes(
            policy,
            config,
            episodes=episodes or config.evaluation.episodes,
            seed=chosen,
            step=config.steps,
            watcher=watcher,
        )
