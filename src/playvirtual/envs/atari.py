"""Atari games on ALE's vectorised C++ emulator, under the protocol of Atari-100k."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.config import EnvironmentConfig
from playvirtual.cores import share
from playvirtual.envs.atari_screen import Episode, Screen
from playvirtual.envs.image import enlarge
from playvirtual.envs.protocol import ActionSpace, Frames, Step

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
# Their ROMs have no game for one player.
TWO_PLAYERS_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
ALE_MAX_FRAMES = 108_000  # half an hour of play: 27,000 actions of 4 frames
# The emulator draws 0 … NOOP_LIMIT − 1 no-ops at a reset.
NOOP_LIMIT = 31
PICTURE_SCALE = 2


def games() -> list[str]:
    """Every game for one player whose ROM comes with ale-py: the 26 of Atari-100k, then the others."""
    from ale_py import roms

    others = set(roms.get_all_rom_ids()) - set(ATARI_100K) - TWO_PLAYERS_ONLY
    return [*ATARI_100K, *sorted(others)]


class Atari:
    """Lanes of one game: minimal actions, no sticky actions, no FIRE at reset, 0 to 30 no-ops, raw rewards.

    A frame is the maximum over the last two of the `action_repeat` screens, reduced by area. With
    `lost_life_is_terminal` a lost life is terminal but the game goes on; otherwise only its end is.

    Every lane has an emulator with a thread of its own, not all of them a common one: that would move every lane at
    every step, also those that are over, and few games of an evaluation are as long as the longest.
    """

    def __init__(self, game: str, lanes: int, *, lost_life_is_terminal: bool, config: EnvironmentConfig) -> None:
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._emulators = [_emulator(game, config) for _ in range(lanes)]
        self._at_once = min(lanes, share())  # threads that may be busy at the same time
        self._game, self._action_repeat = game, config.action_repeat
        self._screens: dict[int, Screen] = {}  # of the lanes that someone looks at
        self._episodes = [Episode(0, 0, [])] * lanes
        channels = 1 if config.grayscale else 3
        self.lanes = lanes
        self.frame_shape = (channels, config.image_size, config.image_size)
        self.action_space: ActionSpace = spaces.Discrete(len(self._emulators[0].ale.get_action_set()))
        self._lost_life_is_terminal = lost_life_is_terminal
        self._frames = np.zeros((lanes, *self.frame_shape), np.uint8)
        self._rewards = np.zeros(lanes, np.float32)
        self._lives = np.zeros(lanes, np.int32)
        self._terminal = np.zeros(lanes, np.bool_)
        self._over = np.ones(lanes, np.bool_)

    def reset(self, lanes: Sequence[int], seeds: Sequence[int]) -> Frames:
        chosen = [int(lane) for lane in lanes]
        if len(chosen) == 1:
            self._load(chosen[0], seeds[0])
        else:
            with ThreadPoolExecutor(self._at_once) as threads:
                list(threads.map(lambda game: self._load(*game), zip(chosen, seeds, strict=True)))
        return self._frames[chosen]

    def _load(self, lane: int, seed: int) -> None:
        """Reloads the game with the seed, which takes as long as hundreds of frames."""
        screen, info = self._emulators[lane].reset(seed=np.array([seed], np.int64))
        self._frames[lane] = _planes(screen)
        self._lives[lane] = info["lives"][0]
        self._episodes[lane] = Episode(seed, int(info["episode_frame_number"][0]), [])
        self._terminal[lane] = self._over[lane] = False

    def step(self, actions: npt.NDArray[np.generic]) -> Step:
        self._rewards[:] = 0
        playing = np.flatnonzero(~self._over).tolist()
        for number, lane in enumerate(playing):
            if number >= self._at_once:
                self._take(playing[number - self._at_once])
            self._emulators[lane].send(np.array([actions[lane]], np.int64))
            self._episodes[lane].actions.append(int(actions[lane]))
        for lane in playing[-self._at_once :]:
            self._take(lane)
        return Step(self._frames.copy(), self._rewards.copy(), self._terminal.copy(), self._over.copy())

    def _take(self, lane: int) -> None:
        """Waits for what an action that was sent has done."""
        screen, score, ended, timed_out, info = self._emulators[lane].recv()
        before, lives = self._lives[lane], info["lives"][0]
        # One life fewer than before with some left is the reference protocol's definition.
        lost = self._lost_life_is_terminal and 0 < lives < before
        self._frames[lane] = _planes(screen)
        self._rewards[lane] = score[0]
        self._terminal[lane] = ended[0] or lost
        self._over[lane] = ended[0] or timed_out[0]
        self._lives[lane] = lives

    def picture(self, lane: int) -> Frames:
        """The game's screen in colour; the first time that a lane is asked for one, its episode is played again."""
        if lane not in self._screens:
            self._screens[lane] = Screen(self._game, self._action_repeat)
        return enlarge(self._screens[lane].picture(self._episodes[lane]), PICTURE_SCALE)

    def close(self) -> None:
        for emulator in self._emulators:
            emulator.close()


def _emulator(game: str, config: EnvironmentConfig) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        game,
        1,
        num_threads=1,
        max_num_frames_per_episode=config.max_episode_frames or ALE_MAX_FRAMES,
        img_height=config.image_size,
        img_width=config.image_size,
        grayscale=config.grayscale,
        stack_num=1,
        frameskip=config.action_repeat,
        maxpool=True,
        noop_max=NOOP_LIMIT,
        # `terminated` then means the end of the game. Lost lives are seen from the counter instead: some
        # games (Bank Heist) are played with 0 lives left, so the counter alone cannot tell the end.
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=False,
    )


def _planes(screens: Frames) -> Frames:
    """An emulator's (1, 1, H, W) gray or (1, 1, H, W, 3) colour screen as (C, H, W)."""
    plane: Frames = screens[0] if screens.ndim == 4 else screens[0, 0].transpose(2, 0, 1)
    return plane
