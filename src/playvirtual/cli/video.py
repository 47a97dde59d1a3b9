"""`playvirtual video`: a film of a trained agent, several episodes side by side."""

from __future__ import annotations

import argparse
from typing import Any

from playvirtual.cli.flags import add_import, add_trust_env, optional_int
from playvirtual.messages import show
from playvirtual.options import coerce

EXAMPLES = """\
examples:
  playvirtual video runs/atari-pong/playvirtual/seed-1                      RUN/videos/episodes-4-seed-1.mp4
  playvirtual video pong-agent --episodes 9 --seed 7 --out pong             pong.mp4: nine episodes, three by three
Below each episode: return, reward, and the Q value of every action by its name (SAC: the policy's action), with the
chosen one marked. An episode that has ended stays dark until the last one ends."""


def add_video(commands: Any) -> None:
    """Adds `playvirtual video`."""
    parser = commands.add_parser(
        "video",
        help="film a trained agent, several episodes side by side",
        description="Play episodes of a run's evaluation with its latest valid checkpoint and film them side by side: "
        "MP4 with the extra `video` installed, else GIF.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder, an export, or the name of a built-in agent")
    parser.add_argument("--episodes", metavar="N", default="4", help="1 to 25 (default: 4)")
    parser.add_argument("--seed", metavar="N", help="seed of the episodes (default: the run's)")
    parser.add_argument("--frames", metavar="N", default="1000", help="of an episode at most (default: 1000)")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="film.mp4 or film.gif; another name gets one of these endings (default: in RUN/videos/)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add_import(parser)
    add_trust_env(parser)
    parser.set_defaults(run=_video)


def _video(options: argparse.Namespace) -> int:
    from playvirtual.api import video

    file, returns = video(
        options.path,
        options.out,
        episodes=coerce("episodes", int, options.episodes),
        frames=coerce("frames", int, options.frames),
        seed=optional_int("seed", options.seed),
        device=options.device,
        trust_env=options.trust_env,
    )
    show(f"returns: {', '.join(f'{value:g}' for value in returns)}\nvideo: {file}")
    return 0
