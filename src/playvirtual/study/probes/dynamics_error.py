"""The one-step prediction error of a trained run's dynamics model in the latent space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual import envs
from playvirtual.agents.agent import EncodesObservations
from playvirtual.config.schema import Config
from playvirtual.device import configure_torch, resolve_device
from playvirtual.envs.vector import FrameStack
from playvirtual.errors import InputError
from playvirtual.runs.agents import RECORD, STATE, STATE_TREE, load_trained_agent, read_step
from playvirtual.runs.checkpoint import latest_valid
from playvirtual.runs.folder import RunFolder
from playvirtual.training.evaluation import Policy, epsilon_greedy
from playvirtual.training.policy import AsyncPolicy

CHUNK = 100  # transitions per forward pass

Encode = Callable[[Tensor], Tensor]  # (N, C, H, W) uint8 -> (N, …)
Dynamics = Callable[[Tensor, Tensor], Tensor]  # (N, …), (N,) or (N, A) -> (N, …)


class Transition(NamedTuple):
    """One step of the evaluated agent in its environment."""

    observation: npt.NDArray[np.uint8]  # (C, H, W)
    action: npt.NDArray[np.generic]
    next_observation: npt.NDArray[np.uint8]  # (C, H, W)


class Measured(NamedTuple):
    """The error of an agent's dynamics model, and the step of its checkpoint."""

    mse: float
    step: int


def dynamics_mse(
    run: str | Path, transitions: int = 1000, seed: int | None = None, device: str | torch.device = "auto"
) -> Measured:
    """Mean of (h(f(s_t), a_t) − f(s_{t+1}))² over the latent state and fresh transitions of the evaluated agent.

    f is the online encoder on images without augmentation (center crops where training uses random ones). The
    dynamics model is in evaluation mode: BatchNorm, where it has one, uses its running statistics.
    """
    if transitions < 1:
        raise InputError(f"transitions: {transitions} is not allowed; allowed: 1 or more")
    if seed is not None and seed < 0:
        raise InputError(f"seed: {seed} is not allowed; allowed: 0 or more")
    folder = RunFolder.open(run)
    config = folder.config()
    if folder.is_export:
        raise InputError(f"run: {str(run)!r} is an export, which has no dynamics model; allowed: the run itself")
    path = latest_valid(folder.path, (RECORD, STATE_TREE, STATE))
    used = resolve_device(device)
    configure_torch(used, config.precision, config.threads)
    agent, step = load_trained_agent(config, path, used), read_step(path)  # which a run may remove while it is probed
    dynamics = agent.parts.get("forward_dynamics")
    if dynamics is None or not isinstance(agent, EncodesObservations):
        raise InputError(
            f"run: {str(run)!r} has no dynamics model (its method is {config.method}); allowed: a run with prediction, "
            "such as spr or playvirtual"
        )
    dynamics.eval()
    chosen = config.seed if seed is None else seed
    policy = epsilon_greedy(AsyncPolicy(agent), config.evaluation.eval_epsilon, np.random.default_rng([chosen, 2]))
    played = play_transitions(policy, config, transitions, chosen)
    return Measured(mean_squared_error(agent.encode, dynamics, played, agent.device), step)


@torch.no_grad()
def mean_squared_error(
    encode: Encode, dynamics: Dynamics, transitions: Iterable[Transition], device: torch.device | str = "cpu"
) -> float:
    """The mean over all transitions and dimensions of the squared one-step prediction error."""
    total, count = 0.0, 0
    for chunk in _chunks(transitions):
        observations, actions, following = (
            torch.as_tensor(np.stack(column), device=device) for column in zip(*chunk, strict=True)
        )
        error = (dynamics(encode(observations), actions).double() - encode(following).double()) ** 2
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


def play_transitions(policy: Policy, config: Config, transitions: int, seed: int) -> Iterator[Transition]:
    """So many transitions of fresh evaluation episodes, without those into a terminal state.

    A dynamics model is not trained on what follows a terminal state.
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
            done = False
            while not done and found < transitions:
                before = stack.observations.copy()
                action = policy(before)
                result = env.step(action)
                stack.push(result.frames)
                done = bool(result.done[0])
                if not result.terminated[0]:
                    found += 1
                    yield Transition(before[0], action[0], stack.observations[0].copy())
            if not found and episode == 100:
                raise InputError(f"run: {config.task} has nothing to predict; allowed: episodes of two steps or more")
    finally:
        env.close()
