"""A training of which everything is compared, step by step, with a plain reading of what its environment said."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from playvirtual.agents.agent import Schedule, Update
from playvirtual.config.schema import RainbowConfig
from playvirtual.replay import PrioritizedSampler
from playvirtual.training.trainer import Trainer
from tests.replay.plain_replay import PlainPriorities, PlainReplay
from tests.training.scripted_env import Moment, ScriptedEnv


class SeenUpdate(NamedTuple):
    """What one call of agent.update was given."""

    step: int  # agent steps, the present one included
    schedule: dict[str, float]
    due: frozenset[str]
    learning_rates: dict[str, float]
    metrics: dict[str, float]


class SeenPolicy(NamedTuple):
    """One call of agent.act."""

    step: int
    explore: bool
    observations: npt.NDArray[np.uint8]
    actions: Tensor


class WatchedTraining:
    """Trains step by step; every batch is compared with the list of episodes as its environment played them.

    `beta` gives the β that importance weights should have at an agent step.
    """

    def __init__(self, trainer: Trainer, beta: Any = None) -> None:
        self.trainer, self.beta = trainer, beta
        c = trainer.config
        assert isinstance(trainer.env.vector_env, ScriptedEnv)
        self.env = trainer.env.vector_env
        repeat = c.environment.stack_fill == "repeat"
        self.plain = PlainReplay(c.replay.capacity, c.environment.frame_stack, repeat_first=repeat)
        self.priorities: PlainPriorities | None = None
        if isinstance(c.agent, RainbowConfig):
            span = max(c.objective.K, c.agent.n_step)
            self.priorities = PlainPriorities(self.plain, span, c.agent.priority_exponent)
        self.updates: list[SeenUpdate] = []
        self.asked: list[SeenPolicy] = []
        self.taken: list[npt.NDArray[np.generic]] = []  # the actions that the environment got
        self._known = 0  # moments of the environment that the list of episodes holds
        self._last: Moment | None = None
        self._act, self._update = trainer.agent.act, trainer.agent.update
        trainer.agent.act = self._watch_act  # type: ignore[method-assign]
        trainer.agent.update = self._watch_update  # type: ignore[method-assign]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._see_frame()
            self.trainer.train(1)
            self._learn_moments()

    @property
    def step(self) -> int:
        """The number of the present step, from 1."""
        return self.trainer.step + 1

    def _see_frame(self) -> None:
        """The frame that the environment shows now, and before it the last one of an episode out of time."""
        for moment in self.env.moments[self._known :]:  # a reset
            assert moment.action is None
            if self._last is not None and not self._last.terminated:
                self.plain.truncate(self._last.frame)
            self._last = moment
            self._known += 1
        assert self._last is not None
        self.plain.observe(self._last.frame)

    def _learn_moments(self) -> None:
        """What the environment made of the action: known to the list at once."""
        if self._known < len(self.env.moments) and self.env.moments[self._known].action is not None:
            moment = self._last = self.env.moments[self._known]
            assert moment.action is not None
            clip = self.trainer.config.environment.reward_clip or np.inf
            reward = max(-clip, min(clip, moment.reward))
            self.plain.act(moment.action, reward, terminated=moment.terminated)
            self.taken.append(moment.action)
            self._known += 1

    def _watch_act(self, observation: Any, explore: bool = False) -> Tensor:
        actions = self._act(observation, explore=explore)
        if self.env.moments and explore:
            seen = np.array(observation)
            np.testing.assert_array_equal(seen[0], self.plain.observation(len(self.plain.entries) - 1))
        self.asked.append(SeenPolicy(self.step, explore, np.array(observation), actions.clone()))
        return actions

    def _watch_update(self, batch: Any, schedule: Schedule) -> Update:
        self._learn_moments()  # where the environment steps before the updates
        result = self._update(batch, schedule)
        rates = {name: group["lr"] for name, group in self._optimizer_groups()}
        values = {name: float(value) for name, value in schedule.items()}
        metrics = {name: float(value) for name, value in result.metrics.items()}
        self.updates.append(SeenUpdate(self.step, values, schedule.due, rates, metrics))
        if self.priorities is None:
            self._check_uniform(batch)
        else:
            self._check_prioritized(batch, result.priorities)
        return result

    def _optimizer_groups(self) -> list[tuple[str, dict[str, Any]]]:
        agent: Any = self.trainer.agent
        optimizers = getattr(agent, "optimizers", None) or {"": agent.optimizer}
        return [(name, group) for name, optimizer in optimizers.items() for group in optimizer.param_groups]

    def _check_prioritized(self, batch: Any, priorities: Tensor | None) -> None:
        c, sampler, plain = self.trainer.config, self.trainer.sampler, self.priorities
        assert isinstance(sampler, PrioritizedSampler)
        assert isinstance(c.agent, RainbowConfig)
        assert plain is not None
        assert priorities is not None
        if c.agent.n_step <= c.objective.K:  # the mask of the last state asks whether its action terminates
            assert self.plain.acts(len(self.plain.entries) - 1)
        powers = torch.tensor(plain.powers())
        np.testing.assert_allclose(sampler.priorities, powers, rtol=1e-5)
        positions = batch.sequences.positions
        assert (powers[positions] > 0).all()
        self.plain.check_rainbow(batch, K=c.objective.K, n=c.agent.n_step, gamma=c.agent.discount)
        np.testing.assert_allclose(batch.weights, plain.weights(positions, self.beta(self.step)), rtol=1e-4)
        plain.update(positions, priorities)

    def _check_uniform(self, batch: Any) -> None:
        c = self.trainer.config
        capacity, K = self.plain.capacity, c.objective.K
        transitions = {number % capacity for number in self.plain.drawable(1)}
        assert set(batch.transitions.positions.tolist()) <= transitions
        self.plain.check_transitions(batch.transitions, c.agent.discount)  # type: ignore[attr-defined]
        starts = {number % capacity for number in self.plain.drawable(K, within_episode=True)}
        if starts:
            assert set(batch.sequences.positions.tolist()) <= starts
            self.plain.check_sequences(batch.sequences, K, [[1.0] * (K + 1)] * len(batch.sequences.positions))
        else:
            assert not batch.sequences.mask.any()
