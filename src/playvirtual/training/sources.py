"""Where an agent's batches come from: prioritised sequences for Rainbow, uniform draws for SAC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from playvirtual.agents.schedule import Schedule
from playvirtual.config import Config, RainbowConfig, SacConfig
from playvirtual.replay import Priorities, Replay, search
from playvirtual.replay.sequences import Sequences, sequences_at
from playvirtual.replay.transitions import Experience, Transitions, Windows, transitions_at, windows_at


class PrioritisedSource:
    """Sequences drawn by their priority, which every update renews.

    `reads_newest` says whether a batch may read more of the newest entry than its frame.
    """

    def __init__(self, config: RainbowConfig, K: int, replay: Replay, generator: torch.Generator) -> None:
        self.config, self.generator = config, generator
        self.priorities = Priorities(replay, config.priority_exponent, span=max(K, config.n_step))
        read = partial(sequences_at, replay, K=K, n=config.n_step, gamma=config.discount)
        self._read: Callable[[Tensor, Tensor], Sequences] = read
        # The mask of the K-th state asks for its terminal; rewards are read up to the one before the n-th.
        self.reads_newest = config.n_step <= K

    def follow(self) -> None:
        """Takes note of what was added to the replay since the last call."""
        self.priorities.follow()

    def sample(self, schedule: Schedule) -> Sequences:
        """Draws one batch without waiting for the device."""
        return self._read(*self.priorities.sample(self.config.batch_size, schedule.beta, self.generator))

    def compile(self) -> None:
        """Replaces the look-up in the replay by its compiled version."""
        self._read = torch.compile(self._read)

    def learned(self, batch: Sequences, metrics: dict[str, Tensor]) -> None:
        """Takes the new priorities out of an update's metrics."""
        self.priorities.update(batch.positions, metrics.pop("priority"))

    def positions(self, batch: Sequences) -> dict[str, Tensor]:
        """Where in the replay a batch came from."""
        return {"sequences": batch.positions}

    def state_dict(self) -> dict[str, Any]:
        """What training changes: the priorities."""
        return self.priorities.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.priorities.load_state_dict(state)


class UniformSource:
    """Transitions for the critic and the actor, windows for the auxiliary objective, each drawn uniformly."""

    reads_newest = False

    def __init__(self, config: SacConfig, K: int, replay: Replay, generator: torch.Generator) -> None:
        self.config, self.K, self.replay, self.generator = config, K, replay, generator
        self._transitions: Callable[[Tensor], Transitions] = partial(transitions_at, replay, gamma=config.discount)
        self._windows: Callable[[Tensor, Tensor], Windows] = partial(windows_at, replay, K=K)

    def follow(self) -> None:
        """New transitions need no bookkeeping here."""

    def sample(self, schedule: Schedule) -> Experience:
        """Draws one batch without waiting for the device."""
        c, generator = self.config, self.generator
        startable = self.replay.startable(1)
        transitions = self._transitions(search(startable.to(torch.float32), c.batch_size, generator))
        windows = None
        if self.K:
            startable = self.replay.startable(self.K, within_episode=True)
            index = search(startable.to(torch.float32), c.auxiliary_batch_size, generator)
            windows = self._windows(index, startable[index])
        return Experience(transitions, windows)

    def compile(self) -> None:
        """Replaces the look-ups in the replay by their compiled versions."""
        self._transitions, self._windows = torch.compile(self._transitions), torch.compile(self._windows)

    def learned(self, batch: Experience, metrics: dict[str, Tensor]) -> None:
        """Uniform draws learn nothing from an update."""

    def positions(self, batch: Experience) -> dict[str, Tensor]:
        """Where in the replay a batch came from."""
        parts = {"transitions": batch.transitions, "windows": batch.windows}
        found = {name: part.positions for name, part in parts.items() if part is not None}
        return {name: positions for name, positions in found.items() if positions is not None}

    def state_dict(self) -> dict[str, Any]:
        """Uniform draws have no memory."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Uniform draws have no memory."""


Source = PrioritisedSource | UniformSource


def make_source(config: Config, replay: Replay, generator: torch.Generator) -> Source:
    """The source that fits the configuration's agent."""
    if isinstance(config.agent, RainbowConfig):
        return PrioritisedSource(config.agent, config.objective.K, replay, generator)
    return UniformSource(config.agent, config.objective.K, replay, generator)
