"""A trained agent outside of training: the environment's raw observations in, its own actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from playvirtual.agents.agent import Agent, ResamplesNoise
from playvirtual.envs.env import EnvironmentConfig, Flags, NativeSpace, to_native
from playvirtual.envs.image import ToFrame
from playvirtual.envs.vector import FrameStack
from playvirtual.errors import InputError, shown
from playvirtual.options import coerce


class TrainedAgent:
    """Acts on what an environment shows, without that environment: resizes, makes gray and stacks frames itself.

    An observation is what the simulator gives: an image (H, W, 3), (H, W) or (3, H, W) of uint8 of any size, or
    MinAtar's `state()`. For an environment without image observations it is what `render()` returns. An agent that has
    learned from a Dict of an image and vectors takes that dict, with each part of the type and shape that the
    environment declares. An action is what the environment's own `step` takes: a whole number for a Discrete space, an
    array within the bounds of a Box.

    With `num_envs` it plays that many environments side by side: observations and actions are sequences of so many.
    Dicts may be one dict of such sequences, as Gymnasium's vector environments return it.
    """

    def __init__(
        self,
        agent: Agent,
        environment: EnvironmentConfig,
        to_frame: ToFrame,
        action_space: NativeSpace,
        num_envs: int | None = None,
    ) -> None:
        """`agent` takes stacks of frames; `action_space` is the environment's own."""
        self.unwrapped = agent  # what training made: it takes stacks of frames and returns tensors
        self.action_space, self.num_envs = action_space, num_envs
        self.action_repeat = environment.action_repeat
        channels, height, width = agent.observation_shape
        if channels % environment.frame_stack or height != width:
            raise InputError(
                f"agent: its observations of shape {agent.observation_shape} are no {environment.frame_stack} frames; "
                "allowed: stacks of frame_stack square ones"
            )
        self.frame_shape = (channels // environment.frame_stack, height, width)
        self._to_frame = to_frame
        repeat_first = environment.stack_fill == "repeat"
        self._stack = FrameStack(num_envs or 1, environment.frame_stack, self.frame_shape, repeat_first=repeat_first)

    def __repr__(self) -> str:
        agent, many = type(self.unwrapped).__name__, f", num_envs={self.num_envs}" if self.num_envs else ""
        return f"{type(self).__name__}({agent}, action_space={self.action_space}, device='{self.device}'{many})"

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.unwrapped.device

    def reset(self, which: Sequence[int] | Flags | None = None) -> None:
        """Forgets the frames of the episode that has ended; with `which`, indices or flags, of these environments."""
        self._stack.clear(range(self.num_envs or 1) if which is None else self._checked_envs(which))

    def act(self, observation: Any, explore: bool = False) -> Any:
        """The action for one observation, or `num_envs` of them for as many; the frames before it are remembered.

        It is the greedy action; `explore` draws one as in training.
        """
        if self.num_envs is None:
            return self._choose([0], [[observation]], explore)[0]
        actions = self._choose(range(self.num_envs), [[each] for each in self._each(observation)], explore)
        return np.asarray(actions)

    def as_gym_policy(self, action_repeat: int | None = None, *, explore: bool = False) -> GymPolicy:
        """A callable observation -> action for a loop that steps the environment frame by frame.

        It repeats each action as often as training did. Where the environment repeats actions itself, as Gymnasium's
        `ALE/Pong-v5` does by its `frameskip`, `action_repeat=1` leaves that to the environment.
        """
        return GymPolicy(self, self.action_repeat if action_repeat is None else action_repeat, explore=explore)

    def _choose(self, indices: Sequence[int], seen: Sequence[Sequence[Any]], explore: bool) -> list[Any]:
        """Actions for some environments, by the raw observations that each has shown since its last action."""
        frames = np.stack([self._to_frame(observations, self.frame_shape) for observations in seen])
        observations = self._stack.push(frames, indices)[list(indices)]
        if explore and isinstance(self.unwrapped, ResamplesNoise):
            self.unwrapped.resample_noise()
        actions = self.unwrapped.act(observations, explore=explore).cpu().numpy()
        return [to_native(np.asarray(action), self.action_space) for action in actions]

    def _each(self, observations: Any) -> Sequence[Any]:
        """The observation of every environment."""
        if self.num_envs is None:
            return [observations]
        if not isinstance(observations, Mapping):
            self._check_count("observation:", observations)
            return list(observations)
        for name, values in observations.items():
            self._check_count(f"observation: of {name!r}", values)
        return [{name: values[n] for name, values in observations.items()} for n in range(self.num_envs)]

    def _checked_envs(self, which: Sequence[int] | Flags) -> npt.NDArray[Any]:
        """Indices or flags of environments that there are."""
        chosen, count = np.asarray(which), self.num_envs or 1
        if chosen.dtype == np.bool_:
            fits = chosen.shape == (count,)
        else:
            fits = chosen.dtype.kind in "iu" and chosen.ndim == 1 and bool(((chosen >= 0) & (chosen < count)).all())
        if not fits and chosen.size:
            allowed = f"allowed: a flag for each of {count}, or indices below {count}"
            raise InputError(f"which: {shown(which)} is not allowed; {allowed}")
        return chosen if fits else np.zeros(0, np.intp)  # NumPy takes an empty list for one of floats

    def _check_count(self, what: str, values: Any) -> None:
        try:
            count = len(values)
        except TypeError:  # a number
            count = 0
        if count != self.num_envs:
            raise InputError(f"{what} {count} are given; allowed: {self.num_envs}, one of each env")


class GymPolicy:
    """An agent as a plain function of the newest observation, called once for every frame of the environment.

    Call `reset()` when an episode begins.
    """

    def __init__(self, agent: TrainedAgent, action_repeat: int, *, explore: bool = False) -> None:
        self._agent, self._explore = agent, explore
        self._action_repeat: int = coerce("action_repeat", int, action_repeat)
        if self._action_repeat < 1:
            raise InputError(f"action_repeat: {action_repeat} is not allowed; allowed: 1 or more")
        count = agent.num_envs or 1
        self._frames = np.zeros(count, np.int64)  # since each environment's reset
        self._seen: list[list[Any]] = [[] for _ in range(count)]  # since each environment's last action
        self._actions: list[Any] = [None] * count
        self.reset()

    def reset(self, which: Sequence[int] | Flags | None = None) -> None:
        """Starts a new episode in all environments or in some, given as indices or flags."""
        self._agent.reset(which)
        envs = np.arange(len(self._frames))
        for index in envs if which is None else envs[self._agent._checked_envs(which)]:
            self._frames[index], self._seen[index] = 0, []

    def __call__(self, observation: Any) -> Any:
        """The action for the environment's next frame; with `num_envs` the actions of all of them."""
        single = self._agent.num_envs is None
        for index, each in enumerate(self._agent._each(observation)):
            seen = each if isinstance(each, Mapping) else np.array(each)
            self._seen[index] = [*self._seen[index][-1:], seen]
        due = np.flatnonzero(self._frames % self._action_repeat == 0).tolist()
        if due:
            chosen = self._agent._choose(due, [self._seen[index] for index in due], self._explore)
            for index, action in zip(due, chosen, strict=True):
                self._actions[index], self._seen[index] = action, []
        self._frames += 1
        return self._actions[0] if single else np.asarray(self._actions)
