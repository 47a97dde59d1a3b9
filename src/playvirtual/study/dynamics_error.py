"""How well the dynamics model of a trained run predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual import envs
from playvirtual.config import Config
from playvirtual.envs.stack import FrameStack
from playvirtual.errors import InputError
from playvirtual.training import kept_agent
from playvirtual.training.acting import Acting
from playvirtual.training.arithmetic import set_arithmetic
from playvirtual.training.checkpoint import newest_sound
from playvirtual.training.devices import resolve
from playvirtual.training.evaluate import Policy, epsilon_greedy
from playvirtual.training.factory import make_agent
from playvirtual.training.pretrained import agent_state
from playvirtual.training.run_folder import RunFolder

CHUNK = 100  # transitions that go through the networks at a time

Encode = Callable[[npt.NDArray[np.uint8]], Tensor]  # (N, C, H, W) -> (N, …)
Dynamics = Callable[[Tensor, Tensor], Tensor]  # (N, …), (N,) or (N, A) -> (N, …)


class Transition(NamedTuple):
    """One step of the evaluated agent."""

    observation: npt.NDArray[np.uint8]  # (C, H, W)
    action: npt.NDArray[np.generic]
    next_observation: npt.NDArray[np.uint8]  # (C, H, W)


class Measured(NamedTuple):
    """An error, and the step of the checkpoint whose agent has it."""

    mse: float
    step: int


def dynamics_mse(
    run: str | Path, transitions: int = 1000, seed: int | None = None, device: str | torch.device = "auto"
) -> Measured:
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
    if folder.is_export:
        raise InputError(f"run: {str(run)!r} is an export, which has no dynamics model; allowed: the run itself")
    path = newest_sound(folder.path, (kept_agent.RECORD, "state.json", "state.safetensors"))
    shape, actions = kept_agent.read_shapes(path)
    used = resolve(device)
    set_arithmetic(config, used)
    agent = make_agent(config, shape, actions, used, seed=0)
    agent.load_state_dict(agent_state(path))
    assert agent.dynamics is not None
    agent.dynamics.eval()
    chosen = config.seed if seed is None else seed
    policy = epsilon_greedy(Acting(agent), config.evaluation.epsilon, np.random.default_rng([chosen, 2]))
    play = _play(policy, config, transitions, chosen)
    return Measured(mean_squared_error(agent.latents, agent.dynamics, play, agent.device), kept_agent.step_of(path))


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
