"""The training loop, and the state that a checkpoint of it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from playvirtual import files
from playvirtual.agents.agent import agent_size, make_agent
from playvirtual.config.schema import Config, num_virtual
from playvirtual.device import check_memory, configure_torch, num_threads, resolve_device
from playvirtual.envs.env import VectorStep
from playvirtual.replay import ReplayBuffer
from playvirtual.runs.agents import check_encoder_from, load_pretrained_encoder
from playvirtual.runs.warm_start import check_init_from, load_initial_weights
from playvirtual.training.clock import Clock
from playvirtual.training.compiled.compiling import key_of, sources
from playvirtual.training.evaluation import Evaluator, Policy, Progress, Watcher, evaluation_policy
from playvirtual.training.learner import Learner
from playvirtual.training.policy import AsyncPolicy, PendingActions, ReadyActions
from playvirtual.training.training_env import TrainingEnv


def _do_nothing() -> None: ...


class Trainer:
    """The parts of one run (environment, replay, agent, learner) and the loop that connects them.

    `resumes` says that a checkpoint is about to be loaded, so that the weights of `encoder_from` and `init_from` need
    not be.
    """

    def __init__(self, config: Config, *, resumes: bool = False) -> None:
        self.config = config
        pretrained = bool(config.encoder_from) and not resumes
        if pretrained:
            check_encoder_from(config)
        warm_start = bool(config.init_from) and not resumes
        if warm_start:
            check_init_from(config)
        self.device = device = resolve_device(config.device)
        configure_torch(device, config.precision, config.threads)
        check_memory(device, {"one observation": config.environment.frame_stack * config.environment.image_size**2})
        play_seed, device_seed, weights_seed = map(int, np.random.SeedSequence(config.seed).generate_state(3))
        self.random = np.random.default_rng(play_seed)  # random actions before learning starts
        self.generator = torch.Generator(device).manual_seed(device_seed)  # everything drawn on the device

        self.env = TrainingEnv(config)
        try:
            self._make_learner(weights_seed, warm_start=warm_start, pretrained=pretrained)
        except BaseException:
            self.env.close()  # nobody else can: there will be no trainer
            raise
        cudagraph = config.compile != "off"
        self.policy = AsyncPolicy(self.agent, explore=True, cudagraph=cudagraph)
        self._greedy_policy = AsyncPolicy(self.agent, cudagraph=cudagraph)
        self._evaluator = Evaluator(config)
        self.clock = Clock()

        self.step = 0  # agent steps taken
        self.episode_returns: list[float] = []  # of the episodes that ended since the last line of metrics
        self.last_return: float | None = None
        self._truncated_frame: npt.NDArray[np.uint8] | None = None  # the last frame of an episode, not stored yet

    def _make_learner(self, seed: int, *, warm_start: bool, pretrained: bool) -> None:
        """The agent, whose weights `seed` decides, and what it learns with, if there is memory for them."""
        config, device = self.config, self.device
        check_memory(device, _memory_needs(config, self.env, device))
        self.agent = make_agent(config, self.env.observation_shape, self.env.action_space, device, seed, self.generator)
        if warm_start:
            load_initial_weights(self.agent, config.init_from)
        if pretrained:
            load_pretrained_encoder(self.agent, config.encoder_from)
        self.replay = _make_replay(config, self.env, device)
        self.sampler = self.agent.make_sampler(self.replay, self.generator)
        self.learner = Learner(
            self.agent, self.sampler, self.generator, compile=config.compile, compile_key=self._compile_key()
        )

    def _compile_key(self) -> str:
        """Equal for runs whose updates compile to the same code, such as those of another seed or another game."""
        c, env, replay = self.config, self.env, self.replay
        shapes = (env.observation_shape, env.action_space, replay.capacity, c.environment)
        learned = (c.agent, c.objective, c.precision, bool(c.encoder_from))  # a pretrained encoder has no gradients
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        return key_of(torch.__version__, sources(), gpu, *learned, *shapes)

    def train(self, steps: int | None = None, after_step: Callable[[], object] = _do_nothing) -> None:
        """Takes `steps` agent steps, by default all that are left, each with the updates that are due.

        `after_step` is the hook that logs, writes checkpoints, evaluates and stops, each when it is due.
        """
        end = self.config.agent_steps if steps is None else self.step + steps
        env_first = self.sampler.reads_newest_transition
        while self.step < end:
            with self.clock.measure("environment"):
                pending = self.ask_policy()  # random before learning starts; on a GPU this does not wait
                self.add_obs()
            # The updates stand before env.step so that the GPU learns while the host plays. The result is that of the
            # opposite order, since an update reads nothing of the newest transition but its observation; where
            # a sampler reads more of it, the environment steps first.
            if not env_first:
                self.make_due_updates()
            with self.clock.measure("environment"):
                action = pending.get()
                transition = self.env.step(action)
                self.add_transition(action, transition)
            if env_first:
                self.make_due_updates()
            self.step += 1
            after_step()

    def ask_policy(self) -> PendingActions:
        """Starts choosing an action, (1,) or (1, A): a random one until learning starts, then the exploring agent's.

        Over the `random_steps` that follow the start of learning, ever fewer are random.
        """
        if not self._plays_at_random():
            return self.policy.ask(self.env.observations)
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            return ReadyActions(self.random.integers(space.n, size=1))
        return ReadyActions(self.random.uniform(space.low, space.high, size=(1, *space.shape)).astype(np.float32))

    def _plays_at_random(self) -> bool:
        """Whether the next action is random: before learning starts, then with a chance that falls from 1 to 0."""
        replay = self.config.replay
        if self.step < replay.learning_starts:
            return True
        left = replay.learning_starts + replay.random_steps - self.step
        return left > 0 and float(self.random.random()) * replay.random_steps < left

    def add_obs(self) -> None:
        """Stores the present frame; before it, the last frame of an episode that was truncated, if there is one."""
        self._end_truncated_episode()
        self.replay.add_obs(self.env.frame)
        self.sampler.on_append()

    def _end_truncated_episode(self) -> None:
        # Stored with the next episode's first frame, not when the episode ends: so updates see the same entries
        # whether they stand before or after env.step.
        if self._truncated_frame is not None:
            self.replay.end_episode(self._truncated_frame)
            self._truncated_frame = None

    def make_due_updates(self) -> None:
        """Makes the updates that are due in the present step, of which step number `learning_starts` has the first."""
        present = self.step + 1  # steps are counted from 1
        learning_steps = present - self.config.replay.learning_starts + 1  # the present one included
        due = int(learning_steps * self.config.agent.updates_per_step + 1e-9)  # in floats 100 · 0.29 is less than 29
        with self.clock.measure("update"):
            if learning_steps > 0 and self.learner.updates < due:
                self.learner.schedule.set(self.global_step + self.config.frames_per_step)
                while self.learner.updates < due:
                    self.learner.update()

    def add_transition(self, action: npt.NDArray[np.generic], transition: VectorStep) -> None:
        """Stores what an action led to; at the end of an episode starts the next one."""
        reward, terminated = float(transition.rewards[0]), bool(transition.terminated[0])
        clip = self.config.environment.reward_clip
        self.replay.add_transition(action[0], min(max(reward, -clip), clip) if clip else reward, terminated=terminated)
        if transition.done[0]:
            self._truncated_frame = None if terminated else transition.frames[0].copy()
            self.last_return = self.env.episode_return
            self.episode_returns.append(self.last_return)
            self.env.reset()

    @property
    def global_step(self) -> int:
        """The steps taken, in the configuration's step unit."""
        return self.step * self.config.frames_per_step

    @property
    def done(self) -> bool:
        """Whether the last step has been taken."""
        return self.step >= self.config.agent_steps

    def step_of_update(self, update: int) -> int:
        """The global step in which update number `update` (from 1) was made."""
        learning_steps = math.ceil(update / self.config.agent.updates_per_step - 1e-9)
        return (self.config.replay.learning_starts - 1 + learning_steps) * self.config.frames_per_step

    def metrics(self) -> dict[str, Any]:
        """A line of metrics.jsonl: counters, returns, schedules, and the updates' means since the last call."""
        line: dict[str, Any] = {
            "step": self.global_step,
            "episodes": self.env.num_episodes - 1,
            "updates": self.learner.updates,
            "return": float(np.mean(self.episode_returns)) if self.episode_returns else None,
            **{name: float(value) for name, value in self.learner.schedule.items()},
            **self.learner.metrics(),
        }
        self.episode_returns = []
        return line

    def evaluate(self, policy: Policy, watcher: Watcher | None = None, progress: Progress | None = None) -> list[float]:
        """The returns of the evaluation episodes; they depend on step and weights alone, and change nothing."""
        c = self.config
        episodes, step = c.evaluation.eval_episodes, self.global_step
        return self._evaluator.evaluate(
            policy, episodes=episodes, seed=c.seed, step=step, watcher=watcher, progress=progress
        )

    def evaluation_policy(self) -> Policy:
        """The agent as it is evaluated at this step."""
        return evaluation_policy(self._greedy_policy, self.config, self.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on but the replay's frames; asking for it changes nothing."""
        truncated = self._truncated_frame
        return {
            "step": self.step,
            "episode_returns": self.episode_returns,
            "last_return": self.last_return,
            "truncated_frame": None if truncated is None else torch.from_numpy(truncated.copy()),
            "random": self.random.bit_generator.state,
            "device": self.device.type,
            "threads": num_threads(self.device),
            "generator": self.generator.get_state(),
            "env": self.env.state_dict(),
            "agent": self.agent.state_dict(),
            "learner": self.learner.state_dict(),
            "sampler": self.sampler.state_dict(),
            "replay": self.replay.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` gave, but not the environment: see `restore_env`, once the replay has its frames."""
        self.step = files.as_whole(state["step"], "step", high=self.config.agent_steps)
        self.last_return = state["last_return"]
        self.episode_returns = files.as_numbers(state["episode_returns"], "episode_returns")
        truncated = state["truncated_frame"]
        if truncated is not None and (truncated.dtype, tuple(truncated.shape)) != (torch.uint8, self.env.frame_shape):
            raise ValueError(f"truncated_frame: not uint8 of shape {self.env.frame_shape}")
        self._truncated_frame = None if truncated is None else truncated.numpy()
        configure_torch(self.device, self.config.precision, self.config.threads or state["threads"])
        self.random.bit_generator.state = state["random"]
        if state["device"] == self.device.type:
            self.generator.set_state(state["generator"])
        else:  # another kind of device has other generators: this one is seeded by the step
            seeds = np.random.SeedSequence([self.config.seed, self.step, 0xDE71CE]).generate_state(1)
            self.generator.manual_seed(int(seeds[0]))
        for name in ("agent", "learner", "sampler", "replay"):
            getattr(self, name).load_state_dict(state[name])

    def restore_env(self, state: Mapping[str, Any]) -> bool:
        """Replays the episode of a checkpoint up to its step.

        If this ends in another observation, the episode is truncated where it was, the next one starts, and the result
        is False.
        """
        if self.env.load_state_dict(state):
            return True
        last_frame: npt.NDArray[np.uint8] = state["observation"].numpy()[0, -self.env.frame_shape[0] :]
        self._end_truncated_episode()
        self.replay.end_episode(last_frame)
        self.sampler.on_append()
        self.env.reset()
        return False

    def close(self) -> None:
        """Closes the environments of training and evaluation."""
        self._evaluator.close()
        self.env.close()


def _memory_needs(config: Config, env: TrainingEnv, device: torch.device) -> dict[str, int]:
    """About how many bytes a run needs at least, by what needs them."""
    shape = env.observation_shape
    size = agent_size(config, shape, env.action_space)
    discrete = isinstance(env.action_space, spaces.Discrete)
    actions = int(env.action_space.n) if isinstance(env.action_space, spaces.Discrete) else env.action_space.shape[0]
    trajectories = num_virtual(config.objective.M, actions)
    frame = math.prod(env.frame_shape) + (8 if discrete else 4 * actions)
    update = config.agent.update_bytes(config.objective.K, trajectories, shape, size.latent)
    return {
        "an update": update // 4 if device.type == "cuda" else update,  # bf16, and kernels that keep less for gradients
        "networks with their optimizers": size.weights + 3 * size.learned,
        "the replay buffer": _capacity(config) * frame,
    }


def _capacity(config: Config) -> int:
    """The entries of the replay buffer. A run that is shorter than it needs one for each step and episode's end."""
    return min(config.replay.capacity, 2 * config.agent_steps + config.environment.frame_stack)


def _make_replay(config: Config, env: TrainingEnv, device: torch.device) -> ReplayBuffer:
    depth = config.environment.frame_stack
    discrete = isinstance(env.action_space, spaces.Discrete)
    action_size = None if discrete else env.action_space.shape[0]  # type: ignore[index]
    repeat_first = config.environment.stack_fill == "repeat"
    return ReplayBuffer(_capacity(config), env.frame_shape, depth, action_size, device, repeat_first=repeat_first)
