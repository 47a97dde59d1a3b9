"""Measures a checkpoint of a whole Atari-100k run: bytes on disk, seconds of stall, seconds to restore it.

    python benchmarks/checkpoint_cost.py pong ms_pacman battle_zone [--steps 100000]

The replay buffer holds --steps frames of random play of the game, the networks are the paper's, and the optimizer has
made its first step.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from script import Parser, checked, run, whole

import playvirtual as pv
from playvirtual import envs
from playvirtual.runs import checkpoint
from playvirtual.runs.atomic_io import lock_run_folder
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.loggers import Loggers
from playvirtual.training.callbacks import Callbacks
from playvirtual.training.checkpointing import restore
from playvirtual.training.display.progress import Silent
from playvirtual.training.interrupts import Interrupts
from playvirtual.training.runner import Runner
from playvirtual.training.trainer import Trainer

NUM_ENVS = 8
TIMED = 3  # checkpoints that are timed, each of a step of its own


def play(trainer: Trainer, steps: int, seed: int) -> None:
    """Adds `steps` entries of random play to the replay buffer, env after env."""
    config, random = trainer.config, np.random.default_rng(seed)
    env = envs.make(config.task, NUM_ENVS, training=True, config=config.environment)
    frames = env.reset(range(NUM_ENVS), [seed * NUM_ENVS + i for i in range(NUM_ENVS)])
    history = []
    for _ in range(steps // NUM_ENVS):
        actions = random.integers(env.action_space.n, size=NUM_ENVS)  # type: ignore[union-attr]
        result = env.step(actions)
        history.append((frames, actions, np.clip(result.rewards, -1, 1), result.terminated, result.done, result.frames))
        frames = result.frames
        if result.done.any():
            indices = np.flatnonzero(result.done).tolist()
            frames = frames.copy()
            frames[indices] = env.reset(indices, random.integers(2**31, size=len(indices)).tolist())
    env.close()
    for i in range(NUM_ENVS):
        for frame, action, reward, terminated, done, after in history:
            trainer.replay.add_obs(frame[i])
            trainer.replay.add_transition(action[i], float(reward[i]), terminated=bool(terminated[i]))
            if done[i] and not terminated[i]:
                trainer.replay.end_episode(after[i])
    trainer.sampler.on_append()
    trainer.step += steps


def measure(game: str, steps: int, folder: Path) -> None:
    """Prints one line of figures for a game."""
    config = pv.build(f"atari/{game}", device="cpu", steps=steps + TIMED)
    trainer = Trainer(config)
    run = RunFolder.create(folder / game)
    run.write_config(config)
    with lock_run_folder(run.path) as lock:
        runner = Runner(trainer, run, lock, Silent(), Interrupts(), Loggers(()), Callbacks())
    play(trainer, steps // 50, 1)
    trainer.learner.update()
    play(trainer, steps * 44 // 50, 2)
    stalls, sizes = [], []
    for seed in (3, 4):
        runner.save()
        play(trainer, steps // 20, seed)
    for _ in range(2):
        trainer.step += 1
        began = time.monotonic()
        runner.save()
        stalls.append(time.monotonic() - began)
        (newest,) = checkpoint.complete(run.path)[-1:]
        sizes.append(sum(f.stat().st_size for f in newest.iterdir()))
    frames = sum(f.stat().st_size for f in newest.glob("frames-*"))
    # With nothing to link from, as after a damaged checkpoint, all files are written.
    for path in checkpoint.complete(run.path)[:-1]:
        path.rename(path.with_name("step-0.damaged"))
    trainer.step += 1
    began = time.monotonic()
    runner.save()
    all_new = time.monotonic() - began
    again = Trainer(config)
    began = time.monotonic()
    restore(again, checkpoint.newest(run.path))
    restored = time.monotonic() - began
    assert again.replay.frames.equal(trainer.replay.frames)
    size, seconds = f"{sizes[-1] / 1e6:.0f} MB | {frames / 1e6:.1f} MB", (stalls[0], all_new, restored)
    print(f"| {game} | {size} | {' | '.join(f'{s:.2f} s' for s in seconds)} |", flush=True)
    trainer.close()
    again.close()


def main() -> None:
    """Prints the table of docs/performance.md."""
    parser = Parser(__doc__)
    games = ["pong", "ms_pacman", "battle_zone"]
    parser.add_argument(
        "games", nargs="*", default=games, metavar="GAME", help=f"Atari games (default: {' '.join(games)})"
    )
    parser.add_argument(
        "--steps", type=whole(5_000), default=100_000, help="agent steps of the run (default: %(default)s)"
    )
    options = parser.parse_args()
    for game in options.games:
        checked(f"atari/{game}")
    print("| game | checkpoint | of it frames | stall, a tenth of the frames new | stall, all new | restore |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for game in options.games:
        with tempfile.TemporaryDirectory() as folder:
            measure(game, options.steps, Path(folder))


if __name__ == "__main__":
    run(main)
