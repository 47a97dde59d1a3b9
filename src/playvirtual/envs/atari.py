"""Atari games on ALE's vectorised C++ emulator, under the protocol of Atari-100k."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.config import EnvironmentConfig
from playvirtual.envs.image import enlarge
from playvirtual.envs.protocol import ActionSpace, Flags, Frames, Step

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
PICTURE_SIZE = 336  # pixels, about


def games() -> list[str]:
    """Every game for one player whose ROM comes with ale-py: the 26 of Atari-100k, then the others."""
    from ale_py import roms

    others = set(roms.get_all_rom_ids()) - set(ATARI_100K) - TWO_PLAYERS_ONLY
    return [*ATARI_100K, *sorted(others)]


class Atari:
    """Lanes of one game: minimal actions, no sticky actions, no FIRE at reset, 0 to 30 no-ops, raw rewards.

    A frame is the maximum over the last two of the `action_repeat` screens, reduced by area. With
    `lost_life_is_terminal` a lost life is terminal but the game goes on; otherwise only its end is.
    """

    def __init__(self, game: str, lanes: int, *, lost_life_is_terminal: bool, config: EnvironmentConfig) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._emulators = AtariVectorEnv(
            game,
            lanes,
            num_threads=min(lanes, _processors()),
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
        channels = 1 if config.grayscale else 3
        self.lanes = lanes
        self.frame_shape = (channels, config.image_size, config.image_size)
        self.action_space: ActionSpace = spaces.Discrete(len(self._emulators.ale.get_action_set()))
        self._lost_life_is_terminal = lost_life_is_terminal
        self._frames = np.zeros((lanes, *self.frame_shape), np.uint8)
        self._lives = np.zeros(lanes, np.int32)
        self._terminal = np.zeros(lanes, np.bool_)
        self._over = np.ones(lanes, np.bool_)
        self._started = False

    def reset(self, lanes: Sequence[int], seeds: Sequence[int]) -> Frames:
        chosen = np.asarray(lanes, np.intp)
        mask = np.zeros(self.lanes, np.bool_)
        mask[chosen] = True
        lane_seeds = np.zeros(self.lanes, np.int64)
        lane_seeds[chosen] = np.asarray(seeds, np.int64)
        if not self._started:  # the emulators take a part only after a whole; the rest waits, over
            self._emulators.reset(seed=lane_seeds)
            self._started = True
        screens, info = self._emulators.reset(seed=lane_seeds[mask], options={"reset_mask": mask})
        self._frames[mask] = self._planes(screens)[mask]
        self._lives[mask] = info["lives"][mask]
        self._terminal[mask] = False
        self._over[mask] = False
        return self._frames[chosen]

    def step(self, actions: npt.NDArray[np.generic]) -> Step:
        # The emulators move every lane. What a waiting lane does meanwhile is not looked at: its next reset
        # reloads the game with the seed.
        waiting = self._over.copy()
        screens, scores, ended, timed_out, info = self._emulators.step(
            np.where(waiting, 0, actions).astype(np.int64, copy=False)
        )
        playing = ~waiting
        np.copyto(self._frames, self._planes(screens), where=playing[:, None, None, None])
        np.copyto(self._terminal, ended | self._lost_lives(info["lives"]), where=playing)
        np.copyto(self._over, ended | timed_out, where=playing)
        self._lives[:] = info["lives"]
        rewards = np.where(playing, scores, 0).astype(np.float32)
        return Step(self._frames.copy(), rewards, self._terminal.copy(), self._over.copy())

    def _lost_lives(self, lives: npt.NDArray[np.int32]) -> Flags:
        """(N,): one life fewer than before with some left, the reference protocol's definition."""
        if not self._lost_life_is_terminal:
            return np.zeros(self.lanes, np.bool_)
        return (lives < self._lives) & (lives > 0)

    def _planes(self, screens: Frames) -> Frames:
        """The emulators' (N, 1, H, W) gray or (N, 1, H, W, 3) colour screens as (N, C, H, W)."""
        return screens if screens.ndim == 4 else screens[:, 0].transpose(0, 3, 1, 2)

    def picture(self, lane: int) -> Frames:
        """The agent's own frame in whole pixels: the vectorised emulator keeps no larger screen."""
        frame = self._frames[lane].transpose(1, 2, 0)
        return enlarge(frame, max(1, PICTURE_SIZE // frame.shape[0]))

    def close(self) -> None:
        self._emulators.close()


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
