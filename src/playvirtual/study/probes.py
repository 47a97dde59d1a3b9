"""Measurements of a trained run beyond its score: how well its dynamics model predicts, how large and slow it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual import envs, published
from playvirtual.config import Config, to_dict
from playvirtual.envs.stack import FrameStack
from playvirtual.errors import InputError, unknown, writing
from playvirtual.study import records
from playvirtual.study.complexity import parameters
from playvirtual.study.settings import changes, setting_name
from playvirtual.training import checkpoint
from playvirtual.training.acting import Acting
from playvirtual.training.devices import resolve
from playvirtual.training.evaluate import Policy
from playvirtual.training.factory import make_agent
from playvirtual.training.loop import greedy
from playvirtual.training.pretrained import agent_state
from playvirtual.training.run_folder import RunFolder

PROBES = ("dynamics", "complexity")
FILE = "probes.json"
CHUNK = 100  # transitions that go through the networks at a time

Encode = Callable[[npt.NDArray[np.uint8]], Tensor]  # (N, C, H, W) -> (N, …)
Dynamics = Callable[[Tensor, Tensor], Tensor]  # (N, …), (N,) or (N, A) -> (N, …)


class Transition(NamedTuple):
    """One step of the evaluated agent."""

    observation: npt.NDArray[np.uint8]  # (C, H, W)
    action: npt.NDArray[np.generic]
    next_observation: npt.NDArray[np.uint8]  # (C, H, W)


def dynamics_mse(run: str | Path, transitions: int = 1000, seed: int | None = None, device: str = "auto") -> float:
    """Mean of (h(f(s_t), a_t) − f(s_{t+1}))² over the latent state and fresh transitions of the evaluated agent.

    f is the online encoder on pictures without augmentation (the centre where training sees random crops). The
    dynamics model is in evaluation mode: BatchNorm, where it has one, uses its running statistics.
    """
    if transitions < 1:
        raise InputError(f"transitions: {transitions} is not allowed; allowed: 1 or more")
    if seed is not None and seed < 0:
        raise InputError(f"seed: {seed} is not allowed; allowed: 0 or more")
    folder = RunFolder.open(run)
    config = folder.config()
    if not config.objective.K:
        raise InputError(
            f"run: {str(run)!r} has no dynamics model (its method is {config.method}); allowed: a run with prediction, "
            "such as spr or playvirtual"
        )
    if (folder.path / "weights.safetensors").is_file():
        raise InputError(f"run: {str(run)!r} is an export, which has no dynamics model; allowed: the run itself")
    path = checkpoint.newest(folder.path)
    _, record, actions = checkpoint.read_agent(path)
    c, h, w = record["observation_shape"]
    agent = make_agent(config, (c, h, w), actions, resolve(device), seed=0)
    agent.load_state_dict(agent_state(path))
    assert agent.dynamics is not None
    agent.dynamics.eval()
    chosen = config.seed if seed is None else seed
    policy = greedy(Acting(agent), config.evaluation.epsilon, np.random.default_rng([chosen, 2]))
    return mean_squared_error(agent.latents, agent.dynamics, _play(policy, config, transitions, chosen), agent.device)


@torch.no_grad()
def mean_squared_error(
    encode: Encode, dynamics: Dynamics, transitions: Iterable[Transition], device: torch.device | str = "cpu"
) -> float:
    """The mean over all transitions and dimensions of the squared one-step prediction error."""
    total, count = 0.0, 0
    for chunk in _chunks(transitions):
        observations, actions, following = (np.stack(column) for column in zip(*chunk, strict=True))
        predicted = dynamics(encode(observations), torch.as_tensor(actions, device=device))
        error = (predicted.double() - encode(following).double()) ** 2
        total, count = total + float(error.sum()), count + error.numel()
    return total / count


def _chunks(transitions: Iterable[Transition]) -> Iterator[list[Transition]]:
    chunk: list[Transition] = []
    for transition in transitions:
        chunk.append(transition)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _play(policy: Policy, config: Config, transitions: int, seed: int) -> Iterator[Transition]:
    """So many transitions of fresh evaluation episodes, without the ones into a terminal state.

    What follows a terminal state is nothing the dynamics model was taught.
    """
    env = envs.make(config.task, 1, training=False, config=config.environment)
    try:
        repeat = config.environment.stack_fill == "repeat"
        stack = FrameStack(1, config.environment.frame_stack, env.frame_shape, repeat_first=repeat)
        found, episode = 0, 0
        while found < transitions:
            began = int(np.random.SeedSequence([seed, episode, 0xD11A]).generate_state(1)[0]) & 0x7FFFFFFF
            episode += 1
            stack.clear([0])
            stack.push(env.reset([0], [began]))
            over = False
            while not over and found < transitions:
                before = stack.observations.copy()
                action = policy(before)
                result = env.step(action)
                stack.push(result.frames)
                over = bool(result.over[0])
                if not result.terminal[0]:
                    found += 1
                    yield Transition(before[0], action[0], stack.observations[0].copy())
            if not found and episode == 100:
                raise InputError(f"run: {config.task} has nothing to predict; allowed: episodes of two steps or more")
    finally:
        env.close()


def complexity(run: str | Path) -> dict[str, Any]:
    """Trainable parameters, and the seconds that 1000 updates took as the run itself measured them."""
    folder = RunFolder.open(run)
    folder.config()
    count = parameters(records.read(folder.path))
    if count is None:
        raise InputError(f"run: {str(run)!r} has no checkpoint yet; allowed: a run that has reached its first one")
    return {"parameters": count, "seconds_per_1000_updates": _update_seconds(folder)}


def _update_seconds(folder: RunFolder) -> float | None:
    """Host time spent in updates at the last line of metrics; None before the first update."""
    updates = {int(line["step"]): int(line["updates"]) for line in folder.lines("metrics")}
    spent = {int(line["step"]): float(line.get("update", 0.0)) for line in folder.lines("timing")}
    both = sorted(step for step in updates.keys() & spent.keys() if updates[step])
    return 1000 * spent[both[-1]] / updates[both[-1]] if both else None


def probe(run: str | Path, what: str, *, transitions: int = 1000, seed: int | None = None, device: str = "auto") -> str:
    """Takes the probe of that name, adds it to the run's probes.json, and says it beside the paper's number."""
    if what == "dynamics":
        error = dynamics_mse(run, transitions, seed, device)
        config = RunFolder.open(run).config()
        used = config.seed if seed is None else seed
        save(run, what, {"mse": error, "transitions": transitions, "seed": used})
        text = f"dynamics model: mean squared error {error:.4f} over {transitions} transitions (seed {used})"
        return "\n".join([text, _paper(config, "dynamics_mse", config.task.partition("/")[2], "{:.4f}")])
    if what == "complexity":
        found = complexity(run)
        config = RunFolder.open(run).config()
        save(run, what, found)
        seconds = found["seconds_per_1000_updates"]
        lines = [
            f"trainable parameters: {found['parameters']:,}",
            _paper(config, "parameters_millions", config.task.partition("/")[2], "{:.2f} million"),
            "1000 updates: none made yet" if seconds is None else f"1000 updates: {seconds:.2f} s of the host's time",
            _paper(config, "training_time_overhead_pct", envs.family(config.task), "{:.0f} % longer than SPR"),
        ]
        return "\n".join(lines)
    raise unknown("probe", what, PROBES)


def _paper(config: Config, analysis: str, task: str, shown: str) -> str:
    """The paper's number and what in the run is not as it is there."""
    key = (analysis, task, config.method)
    value = next((a.value for a in published.analyses() if (a.analysis, a.task, a.method) == key), None)
    if value is None:
        return f"  paper: no number for {config.method} on {config.task}"
    changed = setting_name("", "paper", changes(to_dict(config))).removeprefix(", ")
    return f"  paper: {shown.format(value)}" + (f" (this run has {changed})" if changed else "")


def save(run: str | Path, name: str, found: dict[str, Any]) -> Path:
    """Adds a probe's result to the run's probes.json, with the step of the checkpoint it is of."""
    path = Path(run) / FILE
    step = int(checkpoint.newest(Path(run)).name.removeprefix("step-"))
    try:
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        earlier = {}
    partial = path.with_suffix(".partial")
    with writing("run", path):
        partial.write_text(json.dumps({**earlier, name: {"step": step, **found}}, indent=2) + "\n", encoding="utf-8")
        partial.rename(path)
    return path
