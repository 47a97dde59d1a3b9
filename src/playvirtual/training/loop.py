"""What one step of training is: act, store, learn; and everything that must be kept to go on later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from playvirtual import envs
from playvirtual.config import Config, RainbowConfig
from playvirtual.envs.protocol import Preparing, Step
from playvirtual.envs.stack import FrameStack
from playvirtual.replay import Replay
from playvirtual.training.acting import Acting, Answer
from playvirtual.training.arithmetic import set_arithmetic, threads_on
from playvirtual.training.devices import resolve
from playvirtual.training.evaluate import Policy, Watcher, epsilon_greedy, evaluate
from playvirtual.training.factory import make_agent
from playvirtual.training.learner import Learner
from playvirtual.training.pretrained import check_source, take_encoder
from playvirtual.training.sources import make_source


class Training:
    """All parts of one run and the counters that say how far it is.

    One that `resumes` is about to be given a checkpoint, with the encoder that the run took over when it began.
    """

    def __init__(self, config: Config, *, resumes: bool = False) -> None:
        self.config = config
        if config.encoder_from and not resumes:
            check_source(config)
        self.device = device = resolve(config.device)
        set_arithmetic(config, device)
        seeds = np.random.SeedSequence(config.seed).generate_state(3)
        self.random = np.random.default_rng(int(seeds[0]))  # random play before learning starts
        self.generator = torch.Generator(device).manual_seed(int(seeds[1]))  # everything drawn on the device

        self.env = envs.make(config.task, 1, training=True, config=config.environment)
        c, height, width = self.env.frame_shape
        self.observation_shape = (c * config.environment.frame_stack, height, width)
        self.agent = make_agent(
            config, self.observation_shape, self.env.action_space, device, int(seeds[2]), self.generator
        )
        if config.encoder_from and not resumes:
            take_encoder(self.agent, Path(config.encoder_from))
        # A run shorter than the ring needs less: at most one entry that closes an episode for each of its steps.
        capacity = min(config.replay.capacity, 2 * config.agent_steps + config.environment.frame_stack)
        discrete = isinstance(self.env.action_space, spaces.Discrete)
        action_size = None if discrete else self.env.action_space.shape[0]  # type: ignore[index]
        stack, repeat = config.environment.frame_stack, config.environment.stack_fill == "repeat"
        self.replay = Replay(capacity, self.env.frame_shape, stack, action_size, device, repeat_first=repeat)
        self.source = make_source(config, self.replay, self.generator)
        self.learner = Learner(config, self.agent, self.source, self.generator)
        captures = config.capture != "off"
        self.explore = Acting(self.agent, explore=True, capture=captures)
        self._exploit = Acting(self.agent, capture=captures)
        self.stack = FrameStack(1, stack, self.env.frame_shape, repeat_first=repeat)

        self.step = 0  # agent steps taken
        self.episode = 0  # games begun
        self.finished: list[float] = []  # returns of the games that ended since the last line of metrics
        self.last_return: float | None = None
        self.last_score: float | None = None
        self._return = 0.0
        self._last: npt.NDArray[np.uint8] | None = None  # left by a time limit, not stored yet
        self._actions: list[npt.NDArray[np.generic]] = []  # of the game that is being played
        self._frame = self._begin()

    @property
    def counted(self) -> int:
        """Steps taken, in the configuration's step unit."""
        return self.step * self.config.unit

    def evaluation_due(self) -> bool:
        """Whether the last step reached or crossed a multiple of the evaluation interval."""
        every = self.config.evaluation.every
        return every > 0 and self.counted // every > (self.counted - self.config.unit) // every

    @property
    def done(self) -> bool:
        """Whether the last step has been taken."""
        return self.counted >= self.config.steps

    def checkpoint_due(self) -> bool:
        """Whether the interval between checkpoints is over."""
        every = self.config.checkpoint_every
        return every > 0 and self.step % every == 0

    def _begin(self) -> npt.NDArray[np.uint8]:
        """Starts the next game, and gets the one after it ready where that is slow."""
        seed = self._seed(self.episode)
        self.episode += 1
        self._return = 0.0
        self._actions = []
        frames = self.env.reset([0], [seed])
        if isinstance(self.env, Preparing):
            self.env.prepare(self._seed(self.episode))
        self.stack.clear([0])
        self.stack.push(frames)
        frame: npt.NDArray[np.uint8] = frames[0]
        return frame

    def _seed(self, episode: int) -> int:
        """A game's; depends on the run's seed and the game's number alone."""
        # The last number keeps [seed, 0], which NumPy takes for `seed` alone, apart from the other streams of the run.
        return int(np.random.SeedSequence([self.config.seed, episode, 0x6A3E]).generate_state(1)[0]) & 0x7FFFFFFF

    def interact(self) -> None:
        """One agent step without its updates: choose, store what was seen, act, store what came of it."""
        self._act_and_store(self._look()())

    def advance(self, measure: Callable[[str], AbstractContextManager[object]] = nullcontext) -> None:
        """One agent step and its updates, as `interact` and then `learn` would; on a GPU both at the same time.

        An update reads no more of the newest entry than its frame, unless the source says so. Hence the device can
        learn while the host plays, and nothing in the order of the data changes. `measure` takes the time of parts.
        """
        with measure("environment"):
            answer = self._look()
            if self.source.reads_newest:
                self._act_and_store(answer())
        with measure("update"):
            self.learn()
        if not self.source.reads_newest:
            with measure("environment"):
                self._act_and_store(answer())

    def _look(self) -> Answer:
        """Begins to choose an action and stores the frame it is chosen in."""
        answer = self._choose()
        self._close_episode()
        self.replay.begin(self._frame)
        self.source.follow()
        self.step += 1
        return answer

    def _act_and_store(self, action: npt.NDArray[np.generic]) -> None:
        """Plays one step of the game and stores what came of it."""
        result = self._act(action)
        reward, terminal, over = float(result.rewards[0]), bool(result.terminal[0]), bool(result.over[0])
        clip = self.config.environment.reward_clip
        self.replay.complete(action[0], min(max(reward, -clip), clip) if clip else reward, terminal=terminal)
        if over:
            self._last = None if terminal else result.frames[0].copy()
            self.finished.append(self._return)
            self.last_return = self._return
            self._frame = self._begin()

    def _close_episode(self) -> None:
        """Stores the frame that a time limit left, before the next episode's first: no update may see it sooner."""
        if self._last is not None:
            self.replay.close(self._last)
            self._last = None

    def _act(self, action: npt.NDArray[np.generic]) -> Step:
        """Moves the game, and what the agent sees of it, one action on."""
        result = self.env.step(action)
        self._actions.append(action[0])
        self._return += float(result.rewards[0])
        if result.terminal[0]:  # a lost life: the game goes on, the agent's episode does not
            self.stack.clear([0])
        self.stack.push(result.frames)
        self._frame = result.frames[0]
        return result

    def _choose(self) -> Answer:
        """For (1,) or (1, A): random play until the replay has its minimum, the exploring agent after that."""
        if self.step >= self.config.replay.min_size:
            return self.explore.ask(self.stack.observations)
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            action: npt.NDArray[np.generic] = self.random.integers(space.n, size=1)
        else:
            action = self.random.uniform(space.low, space.high, size=(1, *space.shape)).astype(np.float32)
        return lambda: action

    def learn(self) -> None:
        """The updates that are due after this step."""
        learning_steps = self.step - self.config.replay.min_size + 1
        due = int(learning_steps * self.config.agent.updates_per_step + 1e-9)
        if learning_steps > 0 and self.learner.updates < due:
            self.learner.schedule.set(self.counted)
            while self.learner.updates < due:
                self.learner.update()

    def step_of_update(self, update: int) -> int:
        """The step after which update number `update` (from 1) was made, in the configuration's step unit."""
        learning_steps = math.ceil(update / self.config.agent.updates_per_step - 1e-9)
        return (self.config.replay.min_size - 1 + learning_steps) * self.config.unit

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

    def evaluate(self, policy: Policy, watcher: Watcher | None = None) -> list[float]:
        """The returns of the evaluation episodes; depends on the step and the weights alone, and changes nothing."""
        e, c = self.config.evaluation, self.config
        return evaluate(policy, c, episodes=e.episodes, seed=c.seed, step=self.counted, watcher=watcher)

    def policy(self) -> Policy:
        """The agent as it is evaluated at this step."""
        random = np.random.default_rng([self.config.seed, self.counted])
        return epsilon_greedy(self._exploit, self.config.evaluation.epsilon, random)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, but the replay's frames; asking for it changes nothing."""
        actions = np.stack(self._actions) if self._actions else np.zeros(0)
        return {
            "step": self.step,
            "episode": self.episode,
            "finished": self.finished,
            "last_return": self.last_return,
            "actions": torch.from_numpy(actions),
            "observation": torch.from_numpy(self.stack.observations.copy()),
            "last": None if self._last is None else torch.from_numpy(self._last.copy()),
            "random": self.random.bit_generator.state,
            "device": self.device.type,
            "threads": threads_on(self.device),
            "generator": self.generator.get_state(),
            "agent": self.agent.state_dict(),
            "learner": self.learner.state_dict(),
            "source": self.source.state_dict(),
            "replay": self.replay.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave but the game; `rejoin` it once the replay has its frames back."""
        self.step, self.finished, self.last_return = state["step"], state["finished"], state["last_return"]
        last = state.get("last")  # checkpoints of before there was this entry have the frame in their replay
        self._last = None if last is None else last.numpy()
        set_arithmetic(self.config, self.device, state.get("threads", 0))  # older checkpoints do not say
        self.random.bit_generator.state = state["random"]
        self._resume_draws(state)
        for name in ("agent", "learner", "source", "replay"):
            getattr(self, name).load_state_dict(state[name])

    def _resume_draws(self, state: Mapping[str, Any]) -> None:
        """Draws on as before or, on another kind of device, whose generators are others, from a seed of this step."""
        if device_of(state) == self.device.type:
            self.generator.set_state(state["generator"])
        else:
            seeds = np.random.SeedSequence([self.config.seed, self.step, 0xDE71CE]).generate_state(1)
            self.generator.manual_seed(int(seeds[0]))

    def rejoin(self, game: Mapping[str, Any]) -> bool:
        """Plays the game up to where it was: seed and actions decide it, so no emulator state is kept.

        If something else decides it too, and another picture comes out, the game is closed as by a time limit,
        the next one begins, and the answer is False.
        """
        self.episode = game["episode"] - 1
        self._frame = self._begin()
        for action in game["actions"].numpy():
            self._act(action[None])
        observation: npt.NDArray[np.uint8] = game["observation"].numpy()
        if np.array_equal(self.stack.observations, observation):
            return True
        self._close_episode()
        self.replay.close(observation[0, -self.env.frame_shape[0] :])
        self.source.follow()
        self._frame = self._begin()
        return False

    def close(self) -> None:
        """Lets the environment go."""
        self.env.close()

    def note(self) -> str:
        """The last return and score for the progress display."""
        shown = [("return", self.last_return), ("score", self.last_score)]
        return ", ".join(f"{name} {value:.1f}" for name, value in shown if value is not None)


def device_of(state: Mapping[str, Any]) -> str:
    """The kind of device that a training's state was made on."""
    # Checkpoints of before there was this entry: a GPU's generator has 16 bytes of state, the CPU's thousands.
    kind: str = state.get("device") or ("cuda" if len(state["generator"]) == 16 else "cpu")
    return kind
