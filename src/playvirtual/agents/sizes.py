"""Parameters counted as the paper counts them: by what the released code declares."""

from __future__ import annotations

from torch import nn

from playvirtual.agents.rainbow import Rainbow
from playvirtual.agents.sac import Sac

# Of the released Rainbow's parts that nothing reads: a reward predictor (a channel of the feature map, a hidden layer,
# one of three signs) and, in each dynamics model, an embedding of actions.
REWARD_HIDDEN, REWARD_SIGNS, EMBEDDING = 256, 3, 6


def released_count(agent: Rainbow | Sac) -> int | None:
    """The number that the paper's tables would have for this agent; None where the released code has no such networks.

    SAC: shared encoders each time they appear, and target networks. Both: a reward predictor of loss weight 0.
    """
    return _sac(agent) if isinstance(agent, Sac) else _rainbow(agent)


def _rainbow(agent: Rainbow) -> int | None:
    if agent.config.latent:  # dynamics models of vectors are this project's own
        return None
    models = sum(name in agent.online for name in ("dm", "bdm"))
    if not models:
        return _size(agent.online)
    channels, height, width = agent.encoder.map_shape
    pixels = height * width
    reward = (channels + 1) + 2 + (pixels + 1) * REWARD_HIDDEN + (REWARD_HIDDEN + 1) * REWARD_SIGNS
    return _size(agent.online) + reward + models * agent.actions.size * pixels * EMBEDDING


def _sac(agent: Sac) -> int:
    count = _size(agent.encoder.convs, agent.actor, agent.critic, agent.target_critic)
    aux = agent.auxiliary
    if aux is None:
        return count
    latent, hidden = agent.config.latent, agent.config.dynamics_hidden
    reward = (latent + 1) * hidden + 2 * hidden + (hidden + 1)  # with a LayerNorm
    return count + _size(agent.encoder, aux.online, aux.momentum) + reward


def _size(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())
