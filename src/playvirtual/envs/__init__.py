"""Environments: Atari, DMControl, MinAtar, toys and anything from Gymnasium, behind one small protocol."""

from playvirtual.envs.env import EnvironmentConfig, VectorEnv, VectorStep
from playvirtual.envs.inspection import action_kind, inspect_env
from playvirtual.envs.making import make
from playvirtual.envs.modules import check_imports, check_trusted, executed_modules, import_modules, named_module
from playvirtual.envs.registry import (
    ActionKind,
    EnvFamily,
    check,
    check_name,
    check_options,
    env_family,
    family,
    register_env,
    task_names,
    to_frame_of,
)

__all__ = [
    "ActionKind",
    "EnvFamily",
    "EnvironmentConfig",
    "VectorEnv",
    "VectorStep",
    "action_kind",
    "check",
    "check_imports",
    "check_name",
    "check_options",
    "check_trusted",
    "env_family",
    "executed_modules",
    "family",
    "import_modules",
    "inspect_env",
    "make",
    "named_module",
    "register_env",
    "task_names",
    "to_frame_of",
]
