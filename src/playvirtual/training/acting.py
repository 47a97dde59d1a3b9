"""From observations on the host to actions on the host, by as few launches as the device allows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.method import DiscreteActions
from playvirtual.training.capture import CapturedPhases
from playvirtual.training.factory import Agent

Observations = npt.NDArray[np.uint8]  # (N, C, H, W)
Actions = npt.NDArray[np.generic]  # (N,) or (N, A)
Answer = Callable[[], Actions]  # waits for what was asked for


class Acting:
    """Calls `agent.act`; with `capture`, on CUDA, as one graph between one copy to the device and one back.

    The graph reads the weights and the noise where they lie, so it goes on being right as long as training and
    loading write them in place.
    """

    def __init__(self, agent: Agent, *, explore: bool = False, capture: bool = False) -> None:
        self.agent, self.explore = agent, explore
        self.capture = capture and agent.device.type == "cuda"
        self._graph: _ActingGraph | None = None

    def __call__(self, observations: Observations) -> Actions:
        """One action for each of N observations; the answer is the caller's to keep."""
        return self.ask(observations)()

    def ask(self, observations: Observations) -> Answer:
        """Begins to choose and does not wait, so that more work can follow on the device before the answer is taken.

        An answer must be taken before the next question.
        """
        if not self.capture:
            plain: Actions = self.agent.act(observations, explore=self.explore).cpu().numpy()
            return lambda: plain
        # Games that are over make N smaller: the first call of an evaluation is for all its lanes.
        if self._graph is None or self._graph.lanes < len(observations):
            self._graph = _ActingGraph(self.agent, self.explore, observations)
        return self._graph.ask(observations)


class _ActingGraph:
    """Acts for up to so many observations as there are in the first ones, through buffers that stay in place."""

    def __init__(self, agent: Agent, explore: bool, first: Observations) -> None:
        self._agent, self._explore, self.lanes = agent, explore, len(first)
        self._observations = torch.zeros(first.shape, dtype=torch.uint8, device=agent.device)
        self._actions = _actions(agent, self.lanes)
        # Pinned: only from and to such memory does a copy not stop the host.
        self._host_observations = torch.zeros(first.shape, dtype=torch.uint8, pin_memory=True)
        self._host_actions = torch.zeros(self._actions.shape, dtype=self._actions.dtype, pin_memory=True)
        self._copied = torch.cuda.Event()
        generators = [agent.generator] if explore and agent.generator is not None else []
        self._launch = CapturedPhases(self._work, agent.device, generators)

    def _work(self, _: int) -> None:
        self._actions.copy_(self._agent.act(self._observations, explore=self._explore))

    def ask(self, observations: Observations) -> Answer:
        count = len(observations)
        # The answer before has waited for its copies, so the host's buffers are free.
        self._host_observations.numpy()[:count] = observations
        self._observations[:count].copy_(self._host_observations[:count], non_blocking=True)
        self._launch(0)  # lanes from `count` on hold old pictures, and nobody reads what is done about them
        self._host_actions.copy_(self._actions, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._actions.device))

        def answer() -> Actions:
            self._copied.synchronize()  # with this copy, not with what came after it
            chosen: Actions = self._host_actions.numpy()[:count].copy()
            return chosen

        return answer


def _actions(agent: Agent, lanes: int) -> Tensor:
    """Room for one action per lane: (N,) integers or (N, A) floats."""
    if isinstance(agent.actions, DiscreteActions):
        return torch.zeros(lanes, dtype=torch.int64, device=agent.device)
    return torch.zeros(lanes, agent.actions.size, device=agent.device)
