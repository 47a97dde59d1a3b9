"""From a configuration to the agent it describes."""

from __future__ import annotations

import torch
from gymnasium import spaces

from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac
from playvirtual.config import Config, RainbowConfig
from playvirtual.envs.protocol import ActionSpace
from playvirtual.training.arithmetic import precision_on

Agent = Rainbow | Sac


def make_agent(
    config: Config,
    observation_shape: tuple[int, int, int],
    action_space: ActionSpace,
    device: torch.device,
    seed: int,
    generator: torch.Generator | None = None,
) -> Agent:
    """An untrained agent; `seed` decides its weights and leaves the global random state untouched.

    With `encoder_from` its encoder takes no part in training; pretrained.py gives it its weights.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # Triton launches on the current device, wherever its tensors are
    made = _make(config, observation_shape, action_space, device, seed, generator)
    if config.encoder_from:
        made.freeze_encoder()
    return made


def _make(
    config: Config,
    observation_shape: tuple[int, int, int],
    action_space: ActionSpace,
    device: torch.device,
    seed: int,
    generator: torch.Generator | None,
) -> Agent:
    agent, objective = config.agent, config.objective
    bf16 = precision_on(device, config) == "bf16"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(agent, RainbowConfig):
            assert isinstance(action_space, spaces.Discrete)
            n = int(action_space.n)
            return Rainbow(agent, objective, observation_shape, n, device, generator, bf16=bf16)
        assert isinstance(action_space, spaces.Box)
        n = action_space.shape[0]
        return Sac(agent, objective, observation_shape, n, device, generator, bf16=bf16)
