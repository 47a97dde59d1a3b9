"""The policy on the host: observations in, actions out, with as few launches as the device allows."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.agents.agent import Agent
from playvirtual.errors import InputError, shown
from playvirtual.method import DiscreteActions
from playvirtual.training.compiled.cudagraph import CudaGraphs

Observations = npt.NDArray[np.uint8]  # (N, C, H, W)
Actions = npt.NDArray[np.generic]  # (N,) or (N, A)


class PendingActions(Protocol):
    """Actions that may still be on their way from the device."""

    def get(self) -> Actions:
        """Waits for the actions, which belong to the caller."""
        ...


class ReadyActions:
    """Actions that are on the host already."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def get(self) -> Actions:
        return self._actions


class AsyncPolicy:
    """Calls `agent.act`; with `cudagraph`, on CUDA, as one graph between one copy to the device and one back.

    There are graphs of a few sizes, so that the last episodes of an evaluation do not pay for those that have ended.
    A graph reads the weights and the noise at fixed addresses, so it stays valid as long as training and loading
    write them in place.
    """

    def __init__(self, agent: Agent, *, explore: bool = False, cudagraph: bool = False) -> None:
        self.agent, self.explore = agent, explore
        self._cudagraph = cudagraph and agent.device.type == "cuda"
        self._graphs: _PolicyGraphs | None = None

    def __call__(self, observations: Observations) -> Actions:
        """One action for each of N observations."""
        return self.ask(observations).get()

    def ask(self, observations: Observations) -> PendingActions:
        """Starts choosing actions without waiting, so that the device can be given more work meanwhile.

        The actions must be fetched before the next call.
        """
        if not self._cudagraph:
            actions = self.agent.act(observations, explore=self.explore)
            return ReadyActions(checked_actions(actions, self.agent, len(observations)))
        # N shrinks as evaluation episodes end: the first call is for all envs.
        if self._graphs is None or self._graphs.num_envs < len(observations):
            self._graphs = _PolicyGraphs(self.agent, self.explore, observations)
        return self._graphs.ask(observations)

    @property
    def captured(self) -> frozenset[int]:
        """The numbers of observations for which a CUDA graph is replayed."""
        return frozenset() if self._graphs is None else self._graphs.captured


def checked_actions(actions: Any, agent: Agent, count: int) -> Actions:
    """The actions of an agent for `count` observations, on the host; raises an InputError for what are none.

    They are int64 or float32 whatever the agent computes in, as a CUDA graph's buffer, the replay buffer and
    checkpoints have them.
    """
    space = agent.action_space
    discrete = isinstance(space, DiscreteActions)
    kind, shape = ("integers", (count,)) if discrete else ("floats", (count, space.size))
    if not isinstance(actions, Tensor):
        raise InputError(f"act: the agent returned a {type(actions).__name__}; allowed: a tensor of {kind} {shape}")
    is_integer = not actions.is_floating_point() and actions.dtype != torch.bool
    if tuple(actions.shape) != shape or is_integer != discrete:
        found = f"{str(actions.dtype).removeprefix('torch.')} of shape {tuple(actions.shape)}"
        raise InputError(
            f"act: the agent returned {found} for {count} observations (N, C, H, W); allowed: {kind} {shape}"
        )
    chosen: npt.NDArray[Any] = actions.detach().to("cpu", torch.int64 if discrete else torch.float32).numpy()
    if isinstance(space, DiscreteActions) and not ((chosen >= 0) & (chosen < space.n)).all():
        raise InputError(f"act: the agent returned {shown(chosen.tolist())}; allowed: 0 to {space.n - 1}")
    return chosen


def graph_size(count: int, num_envs: int) -> int:
    """The smallest size of graph that has room for `count` observations: 1, 4, 16, …, or all `num_envs`.

    Few sizes, because each is captured by itself, and each at most four times too large.
    """
    size = 1
    while size < count:
        size *= 4
    return min(size, num_envs)


class _PolicyGraphs:
    """Acts for as many observations as the first ones or fewer, through buffers that stay in place."""

    def __init__(self, agent: Agent, explore: bool, first: Observations) -> None:
        self._agent, self._explore, self.num_envs = agent, explore, len(first)
        self._observations = torch.zeros(first.shape, dtype=torch.uint8, device=agent.device)
        self._actions = _empty_actions(agent, self.num_envs)
        # Pinned: only from and to such memory does a copy not stop the host.
        self._host_observations = torch.zeros(first.shape, dtype=torch.uint8, pin_memory=True)
        self._host_actions = torch.zeros(self._actions.shape, dtype=self._actions.dtype, pin_memory=True)
        self._copied = torch.cuda.Event()
        generators = [agent.generator] if explore and agent.generator is not None else []
        self._launch = CudaGraphs(self._work, agent.device, generators)

    @property
    def captured(self) -> frozenset[int]:
        return self._launch.captured

    def _work(self, size: int) -> None:
        self._actions[:size].copy_(self._agent.act(self._observations[:size], explore=self._explore))

    def ask(self, observations: Observations) -> PendingActions:
        count = len(observations)
        size = graph_size(count, self.num_envs)
        # The last actions were fetched after their copy, so the host's buffers are free.
        self._host_observations.numpy()[:count] = observations
        self._observations[:count].copy_(self._host_observations[:count], non_blocking=True)
        self._launch(size)  # rows from `count` on hold old frames; their actions are not read
        self._host_actions[:size].copy_(self._actions[:size], non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._actions.device))
        return _CopiedActions(self._copied, self._host_actions, count)


class _CopiedActions:
    """The first `count` rows of a host buffer, once the copy into it is done."""

    def __init__(self, copied: torch.cuda.Event, buffer: Tensor, count: int) -> None:
        self._copied, self._buffer, self._count = copied, buffer, count

    def get(self) -> Actions:
        self._copied.synchronize()  # with this copy, not with what was launched after it
        actions: Actions = self._buffer.numpy()[: self._count].copy()
        return actions


def _empty_actions(agent: Agent, num_envs: int) -> Tensor:
    """A buffer for one action per env: (N,) integers or (N, A) floats."""
    if isinstance(agent.action_space, DiscreteActions):
        return torch.zeros(num_envs, dtype=torch.int64, device=agent.device)
    return torch.zeros(num_envs, agent.action_space.size, device=agent.device)
