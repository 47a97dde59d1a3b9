"""What a checkpoint of a whole Atari-100k run costs: bytes on disk, seconds of stall, seconds to come back.

    python benchmarks/checkpoint_cost.py pong ms_pacman battle_zone

The replay is filled with 100,000 frames of random play of the real game, the networks are the paper's, the
optimiser has made its first step.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from script import Parser, checked, run

import playvirtual as pv
from playvirtual import envs
from playvirtual.training import checkpoint
from playvirtual.training.interrupts import Interrupts
from playvirtual.training.loop import Training
from playvirtual.training.mirrors import Mirrors
from playvirtual.training.progress import Silent
from playvirtual.training.restore import load
from playvirtual.training.run_folder import RunFolder
from playvirtual.training.session import Session

LANES = 8


def play(training: Training, steps: int, seed: int) -> None:
    """Adds `steps` entries of random play to the replay, lane after lane."""
    config, random = training.config, np.random.default_rng(seed)
    env = envs.make(config.task, LANES, training=True, config=config.environment)
    frames = env.reset(range(LANES), [seed * LANES + i for i in range(LANES)])
    history = []
    for _ in range(steps // LANES):
        actions = random.integers(env.action_space.n, size=LANES)  # type: ignore[union-attr]
        result = env.step(actions)
        history.append((frames, actions, np.clip(result.rewards, -1, 1), result.terminal, result.over, result.frames))
        frames = result.frames
        if result.over.any():
            lanes = np.flatnonzero(result.over).tolist()
            frames = frames.copy()
            frames[lanes] = env.reset(lanes, random.integers(2**31, size=len(lanes)).tolist())
    env.close()
    for lane in range(LANES):
        for frame, action, reward, terminal, over, after in history:
            training.replay.begin(frame[lane])
            training.replay.complete(action[lane], float(reward[lane]), terminal=bool(terminal[lane]))
            if over[lane] and not terminal[lane]:
                training.replay.close(after[lane])
    training.source.follow()
    training.step += steps


def measure(game: str, folder: Path) -> None:
    """Prints one line of figures for a game."""
    config = pv.build(f"atari/{game}", device="cpu", steps=100_000)
    training = Training(config)
    run = RunFolder.create(folder / game)
    run.describe(config)
    session = Session(training, run, Silent(), Interrupts(), Mirrors(()))
    play(training, 2_000, 1)
    training.learner.update()
    play(training, 88_000, 2)
    stalls, sizes = [], []
    for seed in (3, 4):
        session._save()
        play(training, 5_000, seed)
    for _ in range(2):
        training.step += 1
        began = time.monotonic()
        session._save()
        stalls.append(time.monotonic() - began)
        (newest,) = checkpoint.complete(run.path)[-1:]
        sizes.append(sum(f.stat().st_size for f in newest.iterdir()))
    frames = sum(f.stat().st_size for f in newest.glob("frames-*"))
    # With nothing to link from, as after a damaged checkpoint, everything is written anew.
    for path in checkpoint.complete(run.path)[:-1]:
        path.rename(path.with_name("step-0.damaged"))
    training.step += 1
    began = time.monotonic()
    session._save()
    anew = time.monotonic() - began
    again = Training(config)
    began = time.monotonic()
    load(again, checkpoint.newest(run.path))
    back = time.monotonic() - began
    assert again.replay.frames.equal(training.replay.frames)
    size, seconds = f"{sizes[-1] / 1e6:.0f} MB | {frames / 1e6:.1f} MB", (stalls[0], anew, back)
    print(f"| {game} | {size} | {' | '.join(f'{s:.2f} s' for s in seconds)} |", flush=True)
    training.close()
    again.close()


def main() -> None:
    """Prints the table of docs/performance.md."""
    parser = Parser(__doc__)
    games = ["pong", "ms_pacman", "battle_zone"]
    parser.add_argument(
        "games", nargs="*", default=games, metavar="GAME", help=f"Atari games (default: {' '.join(games)})"
    )
    options = parser.parse_args()
    for game in options.games:
        checked(f"atari/{game}")
    print("| game | checkpoint | of it frames | stall, 10,000 steps new | stall, all new | to come back |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for game in options.games:
        with tempfile.TemporaryDirectory() as folder:
            measure(game, Path(folder))


if __name__ == "__main__":
    run(main)
