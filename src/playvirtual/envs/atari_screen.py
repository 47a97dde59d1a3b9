"""What an Atari game looks like, for films: in colour, at its own size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from playvirtual.envs.protocol import Frames


class Episode(NamedTuple):
    """What decides how a game goes."""

    seed: int
    no_ops: int  # frames played before the first action
    actions: list[int]  # so far; grows while the game is played


class Screen:
    """The game of a lane, played again on ALE's plain interface: the vectorised one keeps its colours to itself.

    Seed, no-ops and actions decide a game, so that this one is the same, frame by frame.
    """

    def __init__(self, game: str, action_repeat: int) -> None:
        from ale_py import ALEInterface, roms

        self._ale = ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        rom = roms.get_rom_path(game)
        assert rom is not None, game  # there are lanes of it already
        self._rom, self._repeat = rom, action_repeat
        self._episode: Episode | None = None
        self._played = 0  # actions of the episode
        self._last: list[Frames] = []  # screens of the last action: two, or one if it has no more

    def picture(self, episode: Episode) -> Frames:
        """(210, 160, 3): the maximum of the last two screens, as in the agent's frame: what flickers is seen."""
        if episode is not self._episode:
            self._begin(episode)
        for action in episode.actions[self._played :]:
            self._act(action)
        picture: Frames = np.maximum.reduce(self._last)
        return picture

    def _begin(self, episode: Episode) -> None:
        self._ale.setInt("random_seed", episode.seed)
        self._ale.loadROM(self._rom)  # the seed counts from here on
        self._ale.reset_game()
        self._moves = self._ale.getMinimalActionSet()
        for _ in range(episode.no_ops):
            self._ale.act(0)
        self._episode, self._played, self._last = episode, 0, [self._ale.getScreenRGB()]

    def _act(self, action: int) -> None:
        self._last = []
        for _ in range(self._repeat):
            self._ale.act(self._moves[action])
            self._last = [*self._last[-1:], self._ale.getScreenRGB()]
            if self._ale.game_over():
                break
        self._played += 1
