"""An export with a model card: scores, a film, the command that trained it, as model hubs expect them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from playvirtual import envs, files
from playvirtual.api import RunOrPath, evaluate, export_files, open_run, write_export
from playvirtual.calls import explained
from playvirtual.config import registry
from playvirtual.config.build import train_command
from playvirtual.config.schema import Config
from playvirtual.runs.agents import load_agent, read_native_action_space, read_step
from playvirtual.runs.folder import RunFolder, versions
from playvirtual.training.display.video import Recorder
from playvirtual.training.runner import Run

CARD, FILM = "README.md", "replay"  # the names that hubs look for; the film's ending depends on what can write it
FILM_FRAMES = 300


class Score(NamedTuple):
    """The undiscounted returns of whole episodes."""

    returns: Sequence[float]
    seed: int

    def __str__(self) -> str:
        return f"{np.mean(self.returns):.2f} +/- {np.std(self.returns):.2f}"


@explained
def export_with_card(
    path: RunOrPath,
    out: str | Path,
    *,
    format: str = "safetensors",
    episodes: int | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    trust_env: bool = False,
) -> Path:
    """`export` with a model card (README.md with metadata) and a film of the first env.

    The agent is scored for the card, by default with the episodes of the run's own evaluation. That plays its
    environment, so `trust_env` means what it means to `evaluate`.
    """
    folder = open_run(path)
    contents = export_files(folder, out, format)
    config = folder.trusted_config(trust_env=trust_env or isinstance(path, Run))
    with tempfile.TemporaryDirectory() as scratch:
        # The files that are exported play: a run that is still training replaces its checkpoints meanwhile.
        agent = write_export(Path(scratch) / "agent", contents)
        recorder = Recorder(load_agent(config, agent, device), limit=FILM_FRAMES)
        returns = evaluate(agent, episodes=episodes, seed=seed, device=device, watcher=recorder, trust_env=True)
        film = _film(recorder)
        score = Score(returns, config.seed if seed is None else seed)
        text = card(config, folder, agent, score, [name for name, _ in [*contents, film]])
    return write_export(out, [*contents, film, (CARD, text.encode())])


def _film(recorder: Recorder) -> tuple[str, bytes]:
    """The film's name and content."""
    with tempfile.TemporaryDirectory() as scratch:
        written = recorder.save(Path(scratch) / FILM)
        return written.name, files.read(written, "film")


def card(config: Config, folder: RunFolder, source: Path, score: Score, names: Sequence[str]) -> str:
    """The model card: YAML metadata between two lines of dashes, then Markdown."""
    page = Environment(
        loader=PackageLoader("playvirtual.share"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    recorded = folder.record().get("versions")
    then = recorded if isinstance(recorded, dict) else {}
    return page.get_template("card.md").render(
        metadata=metadata(config, score),
        config=config,
        code=_code,
        command=train_command(config),
        score=score,
        episodes=len(score.returns),
        epsilon=config.evaluation.eval_epsilon,
        step=read_step(source),
        actions=read_native_action_space(source),
        versions={str(name): str(version) for name, version in then.items()},
        film=next((name for name in names if name.startswith(FILM)), None),
        portable=[name for name in names if name.startswith("policy.")],
        version=versions().get("playvirtual", ""),
        foreign=", ".join(_code(name) for name in _foreign(config)),
    )


def _foreign(config: Config) -> list[str]:
    """What of the run an extension has registered: whoever loads the agent needs that too."""
    named = (config.method, registry.agent_of(config.agent).name, config.objective.virtual_actions)
    family = [] if envs.family(config.task) in envs.registry.BUILT_IN else [f"{envs.family(config.task)}/…"]
    return [*dict.fromkeys(name for name in named if not registry.is_built_in(name)), *family]


def metadata(config: Config, score: Score) -> str:
    """The card's YAML as model hubs read it; JSON's values are YAML's too."""
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {"type": "mean_reward", "name": "mean_reward", "value": str(score), "verified": False}
    result = {"task": task, "dataset": {"name": config.task, "type": config.task}, "metrics": [metric]}
    fields: dict[str, Any] = {
        "library_name": "playvirtual",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "playvirtual", config.task],
        "model-index": [{"name": f"{config.method} on {config.task}", "results": [result]}],
    }
    return "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())


def _code(value: object) -> str:
    """Any text as inline code: nothing in it can end the code, or the line."""
    text = " ".join(str(value).split()).replace("`", "'")
    return f"`{text}`"
