"""Exports of agents that were never trained: their random weights act like any others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from playvirtual import envs
from playvirtual.agents.agent import make_agent, policy_state_dict
from playvirtual.config.build import build
from playvirtual.config.record import to_dict
from playvirtual.runs.agents import policy_files
from playvirtual.runs.checkpoint import write_new_folder


def write_export(path: Path, task: str, **options: Any) -> Path:
    """What `pv.export` writes of a run of that task and those options at its first step."""
    config = build(task, device="cpu", **options)
    env = envs.make(task, 1, training=True, config=config.environment)
    channels, height, width = env.frame_shape
    shape = (channels * config.environment.frame_stack, height, width)
    agent = make_agent(config, shape, env.action_space, torch.device("cpu"), seed=config.seed)
    native = getattr(env, "native_action_space", None)
    parts = getattr(env, "observed_parts", None)
    contents = policy_files(0, policy_state_dict(agent), shape, env.action_space, native, parts)
    env.close()
    write_new_folder(path, [("config.json", json.dumps(to_dict(config)).encode()), *contents.items()])
    return path
