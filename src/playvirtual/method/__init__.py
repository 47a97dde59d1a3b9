"""The paper's method on its own: virtual trajectories for any agent. Needs torch alone.

`virtual` reads like Section 3 of the paper, `actions` says where virtual actions come from, `dynamics` holds
the models h and b, `projection` the metric spaces.
"""

from playvirtual.method.actions import ActionSpace, BoxActions, DiscreteActions, action_space
from playvirtual.method.dynamics import ConvDynamics, DenseDynamics, rescale
from playvirtual.method.projection import DISTANCES, ProjectionHead, cosine_distance, squared_distance
from playvirtual.method.virtual import (
    VirtualTrajectories,
    cycle,
    endpoint,
    gaussian_ramp_up,
    prediction_loss,
    rollout,
    total_objective,
)

__all__ = [
    "DISTANCES",
    "ActionSpace",
    "BoxActions",
    "ConvDynamics",
    "DenseDynamics",
    "DiscreteActions",
    "ProjectionHead",
    "VirtualTrajectories",
    "action_space",
    "cosine_distance",
    "cycle",
    "endpoint",
    "gaussian_ramp_up",
    "prediction_loss",
    "rescale",
    "rollout",
    "squared_distance",
    "total_objective",
]
