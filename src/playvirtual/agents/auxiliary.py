"""The auxiliary objective with the numbers of a configuration."""

from __future__ import annotations

from collections.abc import Callable

from playvirtual.config import registry
from playvirtual.config.schema import ObjectiveConfig, num_virtual
from playvirtual.method import (
    DISTANCES,
    ActionSpace,
    Augmentation,
    Dynamics,
    SelfPrediction,
    VirtualTrajectories,
    cosine_distance,
    gaussian_ramp_up,
)
from playvirtual.method.samplers import PolicyFunction
from playvirtual.method.virtual import Features


def has_backward_model(config: ObjectiveConfig, actions: ActionSpace) -> bool:
    """Whether some loss needs the backward model: cycles along virtual or recorded actions, or backward prediction."""
    used = num_virtual(config.M, actions.size) or config.real_cycle or config.backward_prediction
    return bool(config.K and used)


def make_objective(
    config: ObjectiveConfig,
    *,
    actions: ActionSpace,
    encoder: Features,
    target_encoder: Features,
    augment: Augmentation,
    projector: Features,
    target_projector: Features,
    predictor: Features | None,
    forward: Dynamics | None,
    backward: Dynamics | None,
    policy: PolicyFunction | None = None,
) -> SelfPrediction:
    """The one auxiliary objective of every agent; without a backward model it is SPR's alone."""
    c = config
    virtual = None
    if forward is not None and backward is not None:
        projected = c.metric == "projection"
        virtual = VirtualTrajectories(
            forward=forward,
            backward=backward,
            actions=actions,
            K=c.K,
            M=num_virtual(c.M, actions.size),
            projector=projector if projected else None,
            predictor=predictor if projected else None,
            target_projector=target_projector if projected else None,
            distance=cosine_distance if projected else DISTANCES[c.latent_distance],
            constraint=c.constraint,
            sampler=registry.make_sampler(c.virtual_actions, c.sigma),
            train_forward=c.cycle_trains_forward,
            i_end=c.i_end,
            lambda_cyc_max=c.lambda_cyc_max,
        )
    return SelfPrediction(
        encoder=encoder,
        target_encoder=target_encoder,
        augment=augment,
        projector=projector,
        target_projector=target_projector,
        predictor=predictor,
        forward=forward,
        K=c.K,
        virtual=virtual,
        real_cycle=c.real_cycle and virtual is not None,
        backward_prediction=c.backward_prediction and virtual is not None,
        lambda_pred=c.lambda_pred,
        policy=policy,
    )


def lambda_cyc_schedule(config: ObjectiveConfig) -> Callable[[int], float]:
    """λ_cyc at a step, as agents put it among their schedules; logged for methods without a cycle too."""
    return lambda step: float(gaussian_ramp_up(step, config.i_end, config.lambda_cyc_max))
