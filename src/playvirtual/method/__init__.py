"""The paper's method on its own: virtual trajectories and self-prediction for any agent. Needs torch alone.

`virtual` reads like Section 3 of the paper, `objective` joins prediction and cycles, `samplers` says where virtual
actions come from, `dynamics` holds the models h and b, `projection` the metric spaces. For agents of other libraries
`loss` makes all of it around an encoder, and `sequences` reads what it learns from out of a ring buffer.
"""

from playvirtual.kernels.rollout import rescale
from playvirtual.method.actions import ActionSpace, BoxActions, DiscreteActions, action_space
from playvirtual.method.dynamics import ConvDynamics, DenseDynamics, Dynamics, RolloutBatch, as_dynamics
from playvirtual.method.loss import PlayVirtualLoss, action_dependence
from playvirtual.method.objective import Augmentation, RandomInputs, SelfPrediction, Targets
from playvirtual.method.projection import DISTANCES, ProjectionHead, cosine_distance, squared_distance
from playvirtual.method.samplers import Perturbed, Sampler, SamplerInput, Uniform
from playvirtual.method.sequences import Sequences, sample_sequences
from playvirtual.method.virtual import VirtualTrajectories, cycle, gaussian_ramp_up, prediction_loss

__all__ = [
    "DISTANCES",
    "ActionSpace",
    "Augmentation",
    "BoxActions",
    "ConvDynamics",
    "DenseDynamics",
    "DiscreteActions",
    "Dynamics",
    "Perturbed",
    "PlayVirtualLoss",
    "ProjectionHead",
    "RandomInputs",
    "RolloutBatch",
    "Sampler",
    "SamplerInput",
    "SelfPrediction",
    "Sequences",
    "Targets",
    "Uniform",
    "VirtualTrajectories",
    "action_dependence",
    "action_space",
    "as_dynamics",
    "cosine_distance",
    "cycle",
    "gaussian_ramp_up",
    "prediction_loss",
    "rescale",
    "sample_sequences",
    "squared_distance",
]
