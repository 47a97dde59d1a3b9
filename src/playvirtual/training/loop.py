"""The one training loop: act, store, learn; at their own pace log, evaluate, checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from playvirtual import envs
from playvirtual.config import Config, RainbowConfig
from playvirtual.envs.stack import FrameStack
from playvirtual.method import DiscreteActions
from playvirtual.replay import Replay
from playvirtual.training import checkpoint
from playvirtual.training.clock import Clock
from playvirtual.training.devices import resolve, set_precision
from playvirtual.training.evaluate import Policy, evaluate
from playvirtual.training.factory import Agent, make_agent
from playvirtual.training.learner import Learner
from playvirtual.training.progress import Display
from playvirtual.training.run_folder import RunFolder
from playvirtual.training.sources import make_source


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies, what decided it, what it scored."""

    path: Path
    config: Config
    returns: list[float]  # of the last evaluation's episodes

    @property
    def score(self) -> float:
        """Mean return of the last evaluation."""
        return float(np.mean(self.returns))


class Training:
    """All parts of one run and the counters that say how far it is."""

    def __init__(self, config: Config) -> None:
        self.config = config
        device = resolve(config.device)
        if device.type == "cpu" and config.threads:
            torch.set_num_threads(config.threads)
        set_precision(config.precision)
        seeds = np.random.SeedSequence(config.seed).generate_state(3)
        self.random = np.random.default_rng(int(seeds[0]))  # random play before learning starts
        generator = torch.Generator(device).manual_seed(int(seeds[1]))  # everything drawn on the device

        self.env = envs.make(config.task, 1, training=True, config=config.environment)
        c, height, width = self.env.frame_shape
        self.observation_shape = (c * config.environment.frame_stack, height, width)
        self.agent = make_agent(config, self.observation_shape, self.env.action_space, device, int(seeds[2]), generator)
        # What `steps`, schedules and evaluation intervals count of one agent step.
        self.unit = config.environment.action_repeat if config.step_unit == "environment" else 1
        # Room for one closing entry per time limit is not worth a formula: a run shorter than the ring needs no more.
        agent_steps = -(-config.steps // self.unit)
        capacity = min(config.replay.capacity, 2 * agent_steps + config.environment.frame_stack)
        discrete = isinstance(self.env.action_space, spaces.Discrete)
        action_size = None if discrete else self.env.action_space.shape[0]  # type: ignore[index]
        stack, repeat = config.environment.frame_stack, config.environment.stack_fill == "repeat"
        self.replay = Replay(capacity, self.env.frame_shape, stack, action_size, device, repeat_first=repeat)
        self.source = make_source(config, self.replay, generator)
        self.learner = Learner(config, self.agent, self.source, generator)
        self.stack = FrameStack(1, stack, self.env.frame_shape, repeat_first=repeat)

        self.step = 0  # agent steps taken
        self.episode = 0  # games begun
        self.finished: list[float] = []  # returns of the games that ended since the last line of metrics
        self.last_return: float | None = None
        self.last_score: float | None = None
        self._return = 0.0
        self._frame = self._begin()

    @property
    def counted(self) -> int:
        """Steps taken, in the configuration's step unit."""
        return self.step * self.unit

    def evaluation_due(self) -> bool:
        """Whether the last step reached or crossed a multiple of the evaluation interval."""
        every = self.config.evaluation.every
        return every > 0 and self.counted // every > (self.counted - self.unit) // every

    def _begin(self) -> npt.NDArray[np.uint8]:
        """Starts the next game; its seed depends on the run's seed and its number alone."""
        seed = int(np.random.SeedSequence([self.config.seed, self.episode]).generate_state(1)[0]) & 0x7FFFFFFF
        self.episode += 1
        self._return = 0.0
        frames = self.env.reset([0], [seed])
        self.stack.clear([0])
        self.stack.push(frames)
        frame: npt.NDArray[np.uint8] = frames[0]
        return frame

    def interact(self) -> None:
        """One agent step: choose, act, store."""
        action = self._choose()
        result = self.env.step(action)
        reward, terminal, over = float(result.rewards[0]), bool(result.terminal[0]), bool(result.over[0])
        self._return += reward
        clip = self.config.environment.reward_clip
        self.replay.add(
            self._frame,
            action[0],
            float(np.clip(reward, -clip, clip)) if clip else reward,
            terminal=terminal,
            last=result.frames[0] if over and not terminal else None,
        )
        self.source.follow()
        self.step += 1
        if over:
            self.finished.append(self._return)
            self.last_return = self._return
            self._frame = self._begin()
            return
        if terminal:  # a lost life: the game goes on, the agent's episode does not
            self.stack.clear([0])
        self.stack.push(result.frames)
        self._frame = result.frames[0]

    def _choose(self) -> npt.NDArray[np.generic]:
        """(1,) or (1, A): random play until the replay has its minimum, the exploring agent after that."""
        if self.step >= self.config.replay.min_size:
            return self.agent.act(self.stack.observations, explore=True).cpu().numpy()
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            return self.random.integers(space.n, size=1)
        return self.random.uniform(space.low, space.high, size=(1, *space.shape)).astype(np.float32)

    def learn(self) -> None:
        """The updates that are due after this step."""
        learning_steps = self.step - self.config.replay.min_size + 1
        due = int(learning_steps * self.config.agent.updates_per_step + 1e-9)
        if learning_steps > 0 and self.learner.updates < due:
            self.learner.schedule.set(self.counted)
            while self.learner.updates < due:
                self.learner.update()

    def metrics(self) -> dict[str, Any]:
        """What metrics.jsonl gets: counters, returns, schedules, and the updates' means since the last call."""
        line: dict[str, Any] = {
            "step": self.counted,
            "episodes": self.episode - 1,
            "updates": self.learner.updates,
            "return": float(np.mean(self.finished)) if self.finished else None,
            "lambda_cyc": float(self.learner.schedule.lambda_cyc),
            **self.learner.metrics(),
        }
        if isinstance(self.config.agent, RainbowConfig):
            line["beta"] = float(self.learner.schedule.beta)
        self.finished = []
        return line

    def evaluate(self) -> list[float]:
        """The returns of the evaluation episodes with the agent as it is now."""
        e = self.config.evaluation
        policy = greedy(self.agent, e.epsilon, np.random.default_rng([self.config.seed, self.counted]))
        returns = evaluate(policy, self.config, episodes=e.episodes, seed=self.config.seed, step=self.counted)
        self.last_score = float(np.mean(returns))
        return returns

    def save(self, path: Path) -> None:
        """Writes a checkpoint into the run folder `path`."""
        shape, actions = self.observation_shape, self.env.action_space
        checkpoint.save(path, self.counted, self.agent.weights(), shape, actions)

    def note(self) -> str:
        """The last return and score for the progress display."""
        shown = [("return", self.last_return), ("score", self.last_score)]
        return ", ".join(f"{name} {value:.1f}" for name, value in shown if value is not None)


def greedy(agent: Agent, epsilon: float, random: np.random.Generator) -> Policy:
    """The agent without exploration noise; with chance ε a discrete action is replaced by a random one."""

    def policy(observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
        actions: npt.NDArray[np.generic] = agent.act(observations).cpu().numpy()
        if epsilon > 0 and isinstance(agent.actions, DiscreteActions):
            replaced = random.random(len(actions)) < epsilon
            actions = np.where(replaced, random.integers(agent.actions.n, size=len(actions)), actions)
        return actions

    return policy


def run(config: Config, path: Path, display: Display) -> Run:
    """Trains from the first step to the last and evaluates at the end; nothing is written if it cannot begin."""
    RunFolder.refuse_existing(path)
    training = Training(config)
    folder = RunFolder.create(path, config)
    clock = Clock()
    returns: list[float] = []
    try:
        while training.counted < config.steps:
            with clock.measure("environment"):
                training.interact()
            with clock.measure("update"):
                training.learn()
            done = training.counted >= config.steps
            if training.step % config.log_every == 0 or done:
                folder.append("metrics", training.metrics())
            if done or training.evaluation_due():
                with clock.measure("evaluation"):
                    returns = training.evaluate()
                summary = {"mean": float(np.mean(returns)), "std": float(np.std(returns)), "returns": returns}
                folder.append("evaluations", {"step": training.counted, **summary})
                training.save(folder.path)
                folder.append("timing", {"step": training.counted, **clock.seconds()})
            display.step(min(training.counted, config.steps), training.note())
        return Run(folder.path, config, returns)
    finally:
        display.close()
        training.env.close()
