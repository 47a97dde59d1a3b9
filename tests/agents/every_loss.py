"""All losses of the continuous agent side by side; an update takes them one after the other."""

from torch import Tensor

from playvirtual.agents.sac import Sac, SacRandoms
from playvirtual.replay.batches import SacBatch


def every_loss(agent: Sac, batch: SacBatch, draws: SacRandoms) -> dict[str, Tensor]:
    """With the weights as they are."""
    assert batch.sequences is not None
    assert draws.auxiliary is not None
    return {
        **agent.critic_losses(batch.transitions, draws),
        **agent.actor_losses(batch.transitions, draws),
        **agent.auxiliary_losses(batch.sequences, draws.auxiliary),
    }
