"""Atari games on ALE's vectorized C++ emulator, under the protocol of Atari-100k."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.device import own_cores
from playvirtual.envs.env import ActionSpace, EnvironmentConfig, Frames, VectorEnv, VectorStep
from playvirtual.envs.image import as_image, channels_first, enlarge, resize_area, to_gray
from playvirtual.envs.registry import EnvFamily
from playvirtual.envs.vector import BackgroundReset

ATARI_100K = (
    "alien",
    "amidar",
    "assault",
    "asterix",
    "bank_heist",
    "battle_zone",
    "boxing",
    "breakout",
    "chopper_command",
    "crazy_climber",
    "demon_attack",
    "freeway",
    "frostbite",
    "gopher",
    "hero",
    "jamesbond",
    "kangaroo",
    "krull",
    "kung_fu_master",
    "ms_pacman",
    "pong",
    "private_eye",
    "qbert",
    "road_runner",
    "seaquest",
    "up_n_down",
)
# The ROMs of these games have no mode for one player.
TWO_PLAYERS_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
ALE_MAX_FRAMES = 108_000  # half an hour of play: 27,000 actions of 4 frames
NO_LIMIT = 2**31 - 1  # the most frames that the emulator can be told
NOOP_LIMIT = 31  # the emulator draws 0 … NOOP_LIMIT − 1 no-ops at a reset
RENDER_SCALE = 2


def games() -> list[str]:
    """Every game for one player whose ROM comes with ale-py: the 26 of Atari-100k, then the others."""
    from ale_py import roms

    others = set(roms.get_all_rom_ids()) - set(ATARI_100K) - TWO_PLAYERS_ONLY
    return [*ATARI_100K, *sorted(others)]


class Atari:
    """A vector env of one game: minimal actions, no sticky actions, no FIRE at reset, 0 to 30 no-ops, raw rewards.

    A frame is the maximum over the last two of the `action_repeat` screens, reduced by area. With
    `life_loss_is_terminal` a lost life is `terminated` but not `done`; without it only the end of a game is terminated.
    An episode is truncated before an action that would pass `max_episode_frames`, no-ops not counted.

    Every environment has an emulator with a thread of its own: one vectorized emulator for all would step every game at
    every call, also those that are done, and few games of an evaluation are as long as the longest.
    """

    def __init__(self, game: str, num_envs: int, *, life_loss_is_terminal: bool, config: EnvironmentConfig) -> None:
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._emulators = [_make_emulator(game, config) for _ in range(num_envs)]
        self._max_busy = min(num_envs, own_cores())  # emulators that compute at the same time
        self._game, self._action_repeat = game, config.action_repeat
        self._max_actions = max(1, (config.max_episode_frames or ALE_MAX_FRAMES) // config.action_repeat)
        self._replays: dict[int, ColorReplay] = {}  # of the environments that have been rendered
        self._episodes = [Episode(0, 0, [])] * num_envs
        channels = 1 if config.grayscale else 3
        self.num_envs = num_envs
        self.frame_shape = (channels, config.image_size, config.image_size)
        actions = self._emulators[0].ale.get_action_set()
        self.action_space: ActionSpace = spaces.Discrete(len(actions))
        self.action_names = tuple(ale_py.Action(action).name.lower() for action in actions)
        self._life_loss_is_terminal = life_loss_is_terminal
        self._frames = np.zeros((num_envs, *self.frame_shape), np.uint8)
        self._rewards = np.zeros(num_envs, np.float32)
        self._lives = np.zeros(num_envs, np.int32)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._done = np.ones(num_envs, np.bool_)

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> Frames:
        chosen = [int(index) for index in indices]
        if len(chosen) == 1:
            self._reset_one(chosen[0], seeds[0])
        else:
            with ThreadPoolExecutor(self._max_busy) as threads:
                list(threads.map(lambda pair: self._reset_one(*pair), zip(chosen, seeds, strict=True)))
        return self._frames[chosen]

    def _reset_one(self, index: int, seed: int) -> None:
        """Loads the ROM again with the seed, which takes as long as hundreds of frames."""
        screen, info = self._emulators[index].reset(seed=np.array([seed], np.int64))
        self._frames[index] = _channels_first(screen)
        self._lives[index] = info["lives"][0]
        self._episodes[index] = Episode(seed, int(info["episode_frame_number"][0]), [])
        self._terminated[index] = self._done[index] = False

    def step(self, actions: npt.NDArray[np.generic], indices: Sequence[int] | None = None) -> VectorStep:
        chosen = np.arange(self.num_envs) if indices is None else np.asarray(indices, np.intp)
        self._rewards[chosen] = 0
        playing = [
            (index, action) for index, action in zip(chosen.tolist(), actions, strict=True) if not self._done[index]
        ]
        for number, (index, action) in enumerate(playing):
            if number >= self._max_busy:
                self._receive(playing[number - self._max_busy][0])
            self._emulators[index].send(np.array([action], np.int64))
            self._episodes[index].actions.append(int(action))
        for index, _ in playing[-self._max_busy :]:
            self._receive(index)
        return VectorStep(self._frames[chosen], self._rewards[chosen], self._terminated[chosen], self._done[chosen])

    def _receive(self, index: int) -> None:
        """Waits for the result of the action that was sent to one emulator."""
        screen, score, ended, _, info = self._emulators[index].recv()
        before, lives = self._lives[index], info["lives"][0]
        # The reference protocol's definition of a lost life: fewer lives than before, and some left.
        lost = self._life_loss_is_terminal and 0 < lives < before
        self._frames[index] = _channels_first(screen)
        self._rewards[index] = score[0]
        self._terminated[index] = ended[0] or lost
        self._done[index] = ended[0] or len(self._episodes[index].actions) >= self._max_actions
        self._lives[index] = lives

    def render(self, index: int) -> Frames:
        """The game's screen in color; the first call for an environment plays its episode again."""
        if index not in self._replays:
            self._replays[index] = ColorReplay(self._game, self._action_repeat)
        return enlarge(self._replays[index].screen(self._episodes[index]), RENDER_SCALE)

    def close(self) -> None:
        for emulator in self._emulators:
            emulator.close()


def _make_emulator(game: str, config: EnvironmentConfig) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        game,
        1,
        num_threads=1,
        # The limit is kept by the caller: the emulator's own ends an action before it looks at the last screens, and
        # gives a frame of older ones, from which the return would be bootstrapped.
        max_num_frames_per_episode=NO_LIMIT,
        img_height=config.image_size,
        img_width=config.image_size,
        grayscale=config.grayscale,
        stack_num=1,
        frameskip=config.action_repeat,
        maxpool=True,
        noop_max=NOOP_LIMIT,
        # ALE's `terminated` is then the end of the game, and lost lives are seen from the counter of lives. The counter
        # alone cannot tell the end: some games (Bank Heist) are played on with 0 lives left.
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=False,
    )


def _channels_first(screens: Frames) -> Frames:
    """An emulator's (1, 1, H, W) gray or (1, 1, H, W, 3) color screen as (C, H, W)."""
    plane: Frames = screens[0] if screens.ndim == 4 else screens[0, 0].transpose(2, 0, 1)
    return plane


class Episode(NamedTuple):
    """The inputs that decide a game."""

    seed: int
    no_ops: int  # frames played before the first action
    actions: list[int]  # so far; grows while the game is played


class ColorReplay:
    """Plays an episode again on ALE's plain interface for its color screens, which the vectorized one does not give.

    Seed, no-ops and actions decide a game, so the screens are the same, frame by frame.
    """

    def __init__(self, game: str, action_repeat: int) -> None:
        from ale_py import ALEInterface, roms

        self._ale = ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        rom = roms.get_rom_path(game)
        assert rom is not None, game
        self._rom, self._action_repeat = rom, action_repeat
        self._episode: Episode | None = None
        self._played = 0  # actions of the episode
        self._last: list[Frames] = []  # the last two screens of the last action, or its only one

    def screen(self, episode: Episode) -> Frames:
        """(210, 160, 3): the maximum of the last two screens, as in the agent's frame, to show sprites that flicker."""
        if episode is not self._episode:
            self._begin(episode)
        for action in episode.actions[self._played :]:
            self._act(action)
        screen: Frames = np.maximum.reduce(self._last)
        return screen

    def _begin(self, episode: Episode) -> None:
        self._ale.setInt("random_seed", episode.seed)
        self._ale.loadROM(self._rom)  # the seed takes effect here
        self._ale.reset_game()
        self._action_set = self._ale.getMinimalActionSet()
        for _ in range(episode.no_ops):
            self._ale.act(0)
        self._episode, self._played, self._last = episode, 0, [self._ale.getScreenRGB()]

    def _act(self, action: int) -> None:
        self._last = []
        for _ in range(self._action_repeat):
            self._ale.act(self._action_set[action])
            self._last = [*self._last[-1:], self._ale.getScreenRGB()]
            if self._ale.game_over():
                break
        self._played += 1


def _to_frame(observations: Sequence[Any], frame_shape: tuple[int, int, int]) -> Frames:
    """The frame of the last two screens, as the emulator makes it of the last two of an action: gray, maximum, area.

    A screen of the frame's own size is taken as one that is preprocessed already.
    """
    channels, size, _ = frame_shape
    screens = [as_image(screen, frame_shape) for screen in observations[-2:]]
    if screens[-1].shape == frame_shape:
        return screens[-1]
    if channels == 1:
        screens = [to_gray(screen) if screen.shape[2] == 3 else screen for screen in screens]
    return channels_first(resize_area(np.maximum.reduce(screens), size))


def _make(name: str, num_envs: int, *, training: bool, config: EnvironmentConfig) -> VectorEnv:
    """A single environment resets in the background: loading a ROM is slow and releases Python's lock."""
    life_loss_is_terminal = training and config.life_loss_is_terminal
    make = partial(Atari, name, num_envs, life_loss_is_terminal=life_loss_is_terminal, config=config)
    return BackgroundReset(make) if num_envs == 1 else make()


FAMILY = EnvFamily(
    tasks=games,
    make_vector=_make,
    actions="discrete",
    to_frame=_to_frame,
    envs_per_worker=8,  # steps are fast, but an emulator is slow to make (0.1 s, with Python's lock held)
)
