"""Makes the film that README.md and the site open with: the best of ten episodes of an agent for MinAtar's Breakout.

python docs/images/film.py playvirtual/minatar-breakout
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

import playvirtual as pv
from playvirtual.training.display.video import Recorder

FILE = Path(__file__).with_name("breakout.gif")
FRAMES, SCALE, COLORS, FRAMES_PER_SECOND = 300, 2, 32, 15


def main() -> None:
    """Plays ten episodes and keeps the film of the best."""
    run = sys.argv[1]
    agent, films = pv.load(run, device="cpu"), {}
    for seed in range(10):
        film = Recorder(agent, limit=FRAMES)
        (score,) = pv.evaluate(run, episodes=1, seed=seed, device="cpu", watcher=film)
        films[score] = film
    best = max(films)
    frames = [Image.fromarray(frame) for frame in films[best].frames]
    frames = [frame.resize((frame.width * SCALE, frame.height * SCALE), Image.Resampling.NEAREST) for frame in frames]
    first, *rest = [frame.quantize(COLORS, dither=Image.Dither.NONE) for frame in frames]
    duration = round(1000 / FRAMES_PER_SECOND)
    first.save(FILE, save_all=True, append_images=rest, duration=duration, loop=0, optimize=True)
    print(f"{FILE}: return {best:g}, {len(frames)} frames of {first.size}, {FILE.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
