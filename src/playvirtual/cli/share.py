"""`playvirtual export`, `push` and `pull`: trained agents for others."""

from __future__ import annotations

import argparse
from typing import Any

from playvirtual.cli.flags import add_import, add_trust_env, optional_int
from playvirtual.errors import InputError
from playvirtual.messages import show

EXPORT_EXAMPLES = """\
examples:
  playvirtual export runs/atari-pong/playvirtual/seed-1 --out pong-agent
  playvirtual export runs/atari-pong/playvirtual/seed-1 --out pong-agent --card --episodes 100
  playvirtual export runs/atari-pong/playvirtual/seed-1 --out pong-agent --format onnx"""
PUSH_EXAMPLES = """\
examples:
  playvirtual push runs/atari-pong/playvirtual/seed-1 me/pong     an export with a card is made first
  playvirtual push pong-agent me/pong --private                   an export with its card, as it is
You must be logged in: `hf auth login`, or a token in the variable HF_TOKEN."""
PULL_EXAMPLES = """\
example:
  playvirtual pull me/pong --out pong-agent
  playvirtual evaluate pong-agent --video"""


def add_export(commands: Any) -> None:
    """Adds `playvirtual export`."""
    parser = commands.add_parser(
        "export",
        help="write a trained agent as a small folder",
        description="Write the policy weights and the configuration alone, without replay and optimizers; "
        "`playvirtual evaluate` and pv.load take the folder like a run.",
        epilog=EXPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder, an export, or the name of a built-in agent")
    parser.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    parser.add_argument(
        "--format",
        default="safetensors",
        metavar="NAME",
        help="safetensors (default), or beside it the acting network as torchscript (policy.pt) or onnx (policy.onnx)",
    )
    parser.add_argument(
        "--card",
        action="store_true",
        help="score the agent, and write a model card (README.md with metadata) and a film beside its weights",
    )
    _add_scoring(parser, "with --card: ")
    parser.set_defaults(run=_export)


def add_push(commands: Any) -> None:
    """Adds `playvirtual push`."""
    parser = commands.add_parser(
        "push",
        help="upload a trained agent with its model card",
        description="Upload a trained agent with its model card to the Hugging Face Hub (extra: hub).",
        epilog=PUSH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="RUN", help="a run folder or an export")
    parser.add_argument("repo", metavar="USER/NAME", help="the repository, which is made if it is missing")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    _add_scoring(parser, "where a card must be made: ")
    parser.set_defaults(run=_push)


def add_pull(commands: Any) -> None:
    """Adds `playvirtual pull`."""
    parser = commands.add_parser(
        "pull",
        help="download an agent that was pushed",
        description="Download an agent from the Hugging Face Hub (extra: hub): JSON and safetensors alone.",
        epilog=PULL_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("repo", metavar="USER/NAME", help="the repository")
    parser.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    parser.add_argument("--revision", metavar="NAME", help="a branch, a tag or a commit (default: main)")
    parser.set_defaults(run=_pull)


def _add_scoring(parser: argparse.ArgumentParser, when: str) -> None:
    parser.add_argument(
        "--episodes", metavar="N", help=f"{when}episodes to score (default: as many as the run's own evaluation)"
    )
    add_trust_env(parser)
    add_import(parser)


def _export(options: argparse.Namespace) -> int:
    from playvirtual.api import export
    from playvirtual.share.card import export_with_card

    episodes = optional_int("episodes", options.episodes)
    if options.card:
        out = export_with_card(
            options.path, options.out, format=options.format, episodes=episodes, trust_env=options.trust_env
        )
    elif episodes is not None:
        raise InputError(f"episodes: {episodes} is given and nothing is scored; allowed: with --card")
    else:
        out = export(options.path, options.out, format=options.format)
    show(f"export: {out}")
    return 0


def _push(options: argparse.Namespace) -> int:
    from playvirtual.share.hub import push

    episodes = optional_int("episodes", options.episodes)
    address = push(options.path, options.repo, private=options.private, episodes=episodes, trust_env=options.trust_env)
    show(f"pushed: {address}")
    return 0


def _pull(options: argparse.Namespace) -> int:
    from playvirtual.share.hub import pull

    show(f"export: {pull(options.repo, options.out, revision=options.revision)}")
    return 0
