"""Rainbow and SPR as later work trains them, with resets: their options and numbers, each with its source.

Sources: [R] evgenii-nikishin/rl_with_resets, `discrete_control/configs/SPR_with_resets.gin`, [SR] and [BBF]
google-research, `bigger_better_faster/bbf/configs/SR_SPR.gin` and `BBF.gin` with their agent and networks, [P] this
project's own choice. Where a number is not named here, it is that of `hyperparameters.py`. docs/modern.md says where
the agents differ from their originals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from playvirtual.config.baselines import NEVER_CLIPPED, NOTHING, SMALL_GREEDY, EpsilonGreedyConfig, derived
from playvirtual.config.fit import SMALL_SIDE
from playvirtual.config.hyperparameters import ATARI, CATCH, MINATAR, RAINBOW
from playvirtual.config.schema import AgentConfig, Config, RainbowConfig, Shape
from playvirtual.envs.registry import ActionKind
from playvirtual.errors import InputError
from playvirtual.options import option


@dataclass(frozen=True)
class ResetConfig(AgentConfig):
    """An agent whose networks are reset now and then."""

    reset_every: int = option(
        "steps after which networks, or parts of them, are made anew, as long as so many are left; 0: never", low=0
    )

    def fitted_to_steps(self, steps: int) -> dict[str, Any]:
        share = min(steps, ATARI.steps) / ATARI.steps
        every = max(1, int(share * self.reset_every)) if self.reset_every else 0
        return {**super().fitted_to_steps(steps), "reset_every": every}


@dataclass(frozen=True)
class RainbowResetsConfig(ResetConfig, RainbowConfig):
    """Rainbow with resets of its last layers."""


@dataclass(frozen=True)
class SrSprConfig(ResetConfig, EpsilonGreedyConfig):
    """SR-SPR."""

    reset_keeps: float = option(
        "what a reset keeps of the weights of encoder and dynamics models; the rest comes from new ones", low=0, high=1
    )


@dataclass(frozen=True)
class BbfConfig(SrSprConfig):
    """BBF."""

    residual_blocks: int = option("residual blocks after each convolution of the encoder and its pooling", low=0)
    weight_decay: float = option("AdamW's weight decay, of weights and not of biases", low=0)
    n_step: int = option("rewards summed before bootstrapping, after a reset", low=1)
    final_n_step: int = option("rewards summed once they are annealed", low=1)
    discount: float = option("γ once it is annealed", low=0, high=1)
    initial_discount: float = option("γ after a reset", low=0, high=1)
    anneal_updates: int = option("updates after a reset over which n_step and the discount are annealed", low=0)

    def check(self, config: Config) -> None:
        super().check(config)
        if self.final_n_step > self.n_step:
            raise InputError(
                f"final_n_step: {self.final_n_step} is not allowed; allowed: at most n_step, {self.n_step}"
            )

    def update_bytes(self, K: int, num_virtual: int, observation_shape: Shape, latent: int) -> int:
        """Rainbow's, and what the stages keep for the gradients: their convolution and, smaller, their blocks'."""
        _, height, width = observation_shape
        stages = 0
        for channel, stride in zip(self.channels, self.strides, strict=True):
            stages += 4 * channel * height * width
            height, width = -(-height // stride), -(-width // stride)
            stages += 4 * channel * height * width * 4 * self.residual_blocks
        return super().update_bytes(K, num_virtual, observation_shape, latent) + self.batch_size * stages

    def own_numbers(self, networks: Collection[str]) -> set[str]:
        return super().own_numbers(networks) | {"n_step"}  # it is where annealing begins

    def fitted_to_images(self, side: int) -> dict[str, Any]:
        """Stages for small images, one where they are seen as they are, else three; discounts as on MinAtar."""
        stages = 1 if side <= SMALL_SIDE else 3
        widths = (32,) if stages == 1 else (16, 32, 32)
        layers = {"channels": widths, "kernel_sizes": (3,) * stages, "strides": (2,) * stages}
        return {**super().fitted_to_images(side), **layers, **SMALL_DISCOUNTS}

    def fitted_to_steps(self, steps: int) -> dict[str, Any]:
        share = min(steps, ATARI.steps) / ATARI.steps
        return {**super().fitted_to_steps(steps), "anneal_updates": int(share * self.anneal_updates)}


RAINBOW_RESETS = derived(RainbowResetsConfig, RAINBOW, reset_every=20_000)  # [R]
SR_SPR = derived(
    SrSprConfig,
    RAINBOW,
    hidden=512,  # [SR] hidden_dim
    noisy_sigma=0.0,  # [SR] noisy
    updates_per_step=8.0,  # [SR] replay_ratio of 256 at batches of 32
    max_grad_norm=NEVER_CLIPPED,  # [SR]
    target_tau=0.005,  # [SR] target_update_tau
    priority_beta_start=0.5,  # [SR] weights are 1/√P
    priority_beta_end=0.5,  # [SR]
    new_priority="largest",  # [SR]
    epsilon_end=0.0,  # [SR] epsilon_train
    epsilon_decay_steps=2_001,  # [SR] epsilon_decay_period
    reset_every=5_001,  # [SR] 5,000, and one more as its code counts: of 100,000 steps 90,018 is the last with a reset
    reset_keeps=0.8,  # [SR] shrink_factor
)
BBF = derived(
    BbfConfig,
    SR_SPR,
    channels=(64, 128, 128),  # [BBF] IMPALA's 16, 32, 32 times width_scale
    kernel_sizes=(3, 3, 3),  # [BBF]
    strides=(2, 2, 2),  # [BBF] of max-pooling
    residual_blocks=2,  # [BBF] num_blocks
    hidden=2_048,  # [BBF] hidden_dim
    updates_per_step=2.0,  # [BBF] replay_ratio of 64 at batches of 32
    weight_decay=0.1,  # [BBF]
    n_step=10,  # [BBF] max_update_horizon
    final_n_step=3,  # [BBF] update_horizon
    discount=0.997,  # [BBF] gamma
    initial_discount=0.97,  # [BBF] min_gamma
    anneal_updates=10_000,  # [BBF] cycle_steps
    reset_every=20_001,  # [BBF] 20,000, and one more likewise: 60,003 is the last step with a reset
    reset_keeps=0.5,  # [BBF] shrink_factor
)

# Grids of 10 × 10 cells: small networks, sized for two CPU cores. [P]
SMALL_SR_SPR: dict[str, Any] = {
    **SMALL_GREEDY,
    "intensity_scale": 0.05,
    "target_period": 1,
    "target_tau": 0.02,
    "max_grad_norm": NEVER_CLIPPED,
    "priority_beta_start": 0.5,
    "priority_beta_end": 0.5,
    "new_priority": "largest",
    "epsilon_end": 0.02,
    "reset_keeps": 0.8,
}
SMALL_DISCOUNTS = {"initial_discount": 0.95, "discount": 0.99}
SMALL_BBF: dict[str, Any] = {
    **SMALL_SR_SPR,
    "channels": (16,),
    "kernel_sizes": (3,),
    "strides": (2,),
    "residual_blocks": 1,
    "weight_decay": 0.1,
    "n_step": 10,
    "final_n_step": 3,
    **SMALL_DISCOUNTS,
    "reset_keeps": 0.5,
}
ON_MINATAR: dict[str, Any] = {"reset_every": 10_000, "epsilon_decay_steps": 10_000}
ON_CATCH: dict[str, Any] = {"reset_every": 2_000, "epsilon_decay_steps": 2_000}
RAINBOWS_WITH_RESETS = {
    "": RAINBOW_RESETS,
    "minatar": derived(RainbowResetsConfig, MINATAR.agent, reset_every=10_000),
    "toy": derived(RainbowResetsConfig, CATCH.agent, reset_every=2_000),
}
SR_SPRS = {
    "": SR_SPR,
    "minatar": derived(SrSprConfig, MINATAR.agent, **{**SMALL_SR_SPR, **ON_MINATAR, "updates_per_step": 1.0}),
    "toy": derived(SrSprConfig, CATCH.agent, **{**SMALL_SR_SPR, **ON_CATCH, "updates_per_step": 1.0}),
}
BBFS = {
    "": BBF,
    "minatar": derived(
        BbfConfig, MINATAR.agent, **{**SMALL_BBF, **ON_MINATAR, "updates_per_step": 0.5, "anneal_updates": 1_000}
    ),
    "toy": derived(BbfConfig, CATCH.agent, **{**SMALL_BBF, **ON_CATCH, "updates_per_step": 0.5, "anneal_updates": 200}),
}

# The class of each agent, the actions it takes, and its hyperparameters by task.
AGENTS: dict[str, tuple[str, ActionKind, Mapping[str, AgentConfig]]] = {
    "rainbow-resets": ("resets:RainbowWithResets", "discrete", RAINBOWS_WITH_RESETS),
    "sr-spr": ("resets:SrSpr", "discrete", SR_SPRS),
    "bbf": ("bbf:Bbf", "discrete", BBFS),
}

# SPR's own horizon, [SR] and [BBF] jumps. Their replay buffer has room for 200,000 transitions; of 100,000 steps none
# is overwritten here either.
RUN_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "sr-spr": {"": {"K": 5}, **NOTHING},
    "bbf": {"": {"K": 5}, **NOTHING},
}

SPR_ALONE: dict[str, Any] = {"M": "0"}  # without virtual trajectories

# The agent of each method, what it changes in the objective, and what it is.
METHODS: dict[str, tuple[dict[ActionKind, str], dict[str, Any], str]] = {
    "spr-resets": ({"discrete": "rainbow-resets"}, SPR_ALONE, "spr with resets of the last layers (discrete actions)"),
    "playvirtual-resets": (
        {"discrete": "rainbow-resets"},
        {},
        "playvirtual with resets of the last layers (discrete actions)",
    ),
    "sr-spr": ({"discrete": "sr-spr"}, SPR_ALONE, "SR-SPR: eight updates per step and resets (discrete actions)"),
    "sr-spr-virtual": ({"discrete": "sr-spr"}, {}, "sr-spr with the cycle loss of playvirtual on top"),
    "bbf": (
        {"discrete": "bbf"},
        SPR_ALONE,
        "BBF: a larger encoder, AdamW, annealed returns, resets (discrete actions)",
    ),
    "bbf-virtual": ({"discrete": "bbf"}, {}, "bbf with the cycle loss of playvirtual on top"),
}
