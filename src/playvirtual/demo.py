"""`make demo`: PlayVirtual learns a small game on the CPU while you watch, and shows what it learned."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import playvirtual as pv
from playvirtual.presets import build
from playvirtual.streams import replace_what_cannot_be_encoded
from playvirtual.study.curves import learning_curve
from playvirtual.training import journals
from playvirtual.training.evaluate import Policy, evaluate
from playvirtual.training.loop import Training
from playvirtual.training.run_folder import RunFolder
from playvirtual.training.video import Recorder

TASK = "toy/catch"
SEED = 1  # of the first four: they ended between +0.78 and +1.00, this one at +1.00
FOLDER = Path("demo")


def random_policy(actions: int, seed: int) -> Policy:
    """Uniformly random actions."""
    random = np.random.default_rng(seed)
    return lambda observations: random.integers(actions, size=len(observations))


def main() -> int:
    """Trains once into demo/, then prints scores and writes the pictures; a second call shows them again."""
    replace_what_cannot_be_encoded()
    run_path = FOLDER / "run"
    config = build(TASK, seed=SEED, device="cpu")
    finished = [e["step"] for e in journals.lines(run_path, "evaluations")]
    if config.steps in finished:
        print(f"{run_path} is trained already; remove {FOLDER}/ to train again")
    else:
        print(f"PlayVirtual learns {TASK} from pixels, {config.steps} steps on the CPU:")
        began = time.monotonic()
        pv.train(TASK, seed=SEED, device="cpu", run_dir=run_path, resume=True)
        print(f"trained in {time.monotonic() - began:.0f} s")

    folder = RunFolder.open(run_path)
    chance = float(np.mean(evaluate(random_policy(3, seed=0), config, episodes=500, seed=0)))
    untrained = Training(config)
    before = float(np.mean(untrained.evaluate(untrained.policy())))
    untrained.close()
    recorder = Recorder(limit=200)
    pv.evaluate(run_path, episodes=config.evaluation.lanes, device="cpu", watcher=recorder)
    learning_curve(folder, FOLDER / "learning-curve.png", random_score=chance)
    for seed in range(1, 8):  # seven more games, so that the animation shows more than one drop
        pv.evaluate(run_path, episodes=1, seed=seed, device="cpu", watcher=recorder)
    recorder.save_gif(FOLDER / "play.gif")
    last = journals.lines(run_path, "evaluations")[-1]
    print(f"\nscore in {TASK} (+1 caught, −1 missed):")
    print(f"  random play            {chance:+.2f}")
    print(f"  before learning        {before:+.2f}")
    print(f"  after {last['step']:>6} steps     {last['mean']:+.2f}   ({len(last['returns'])} games)")
    print(f"\nlearning curve: {FOLDER / 'learning-curve.png'}\nthe agent at play: {FOLDER / 'play.gif'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
