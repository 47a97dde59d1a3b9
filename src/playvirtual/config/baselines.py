"""The baselines of the paper's tables: their options and numbers, each with its source.

Sources: [D] google/dopamine, `labs/atari_100k/configs/*.gin` with the Full Rainbow agent and network behind them, [CR]
aravindsrinivas/curl_rainbow, [CS] MishaLaskin/curl, [CI] its issue 15, where an author gives the batch size of the
published runs, [B] the table of CURL's paper, [Q] denisyarats/drq, [AE] denisyarats/pytorch_sac_ae, [P] this project's
own choice. Where a number is not named here, it is that of `hyperparameters.py`, and the source has the same, but for
the replay buffer of [D], which has room for 1,000,000 transitions: none of 100,000 steps is overwritten in either.
docs/baselines.md says where the agents differ from their originals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from playvirtual.config.hyperparameters import ATARI, CATCH, MINATAR, RAINBOW, REACH, SAC
from playvirtual.config.schema import AgentConfig, Config, RainbowConfig, SacConfig
from playvirtual.envs.registry import ActionKind
from playvirtual.errors import InputError
from playvirtual.options import option

Options = TypeVar("Options", bound=AgentConfig)


@dataclass(frozen=True)
class DerConfig(RainbowConfig):
    """Data-efficient Rainbow."""

    hidden: int = option("units of the hidden layer, which value and advantage share", low=1)


@dataclass(frozen=True)
class EpsilonGreedyConfig(DerConfig):
    """A Rainbow that explores by random actions in place of noisy layers."""

    epsilon_greedy: ClassVar[bool] = True

    noisy_sigma: float = option("σ₀ of the noisy layers: 0, there are none", low=0, high=0)
    epsilon_end: float = option("ε, the share of random actions in training, once it has fallen from 1", low=0, high=1)
    epsilon_decay_steps: int = option("steps over which ε falls, from learning_starts on", low=1)

    def fitted_to_steps(self, steps: int) -> dict[str, Any]:
        return {"epsilon_decay_steps": max(1, min(steps, ATARI.steps) * self.epsilon_decay_steps // ATARI.steps)}


@dataclass(frozen=True)
class OtrConfig(EpsilonGreedyConfig):
    """Overtrained Rainbow."""


@dataclass(frozen=True)
class DrqDqnConfig(EpsilonGreedyConfig):
    """DrQ for discrete actions: a double dueling DQN on augmented images."""

    atoms: int = option("outputs per action: 1, its value and no distribution", low=1, high=1)
    v_max: float = option("without effect: values have no support", low=1e-6)

    def fit_reasons(self, config: Config, earned: str) -> list[str]:
        clip = config.environment.reward_clip
        return [
            f"a discount of {self.discount:g}: random play earned {earned}, "
            f"{f'clipped to ±{clip:g}' if clip else 'not clipped'} (--discount, --reward-clip)"
        ]


@dataclass(frozen=True)
class CurlRainbowConfig(RainbowConfig):
    """CURL for discrete actions."""

    contrast_size: int = option("size of what the contrastive loss compares", low=1)
    contrast_weight: float = option("weight of the contrastive loss", low=0)
    contrast_scale: float = option("similarities are multiplied by this before their softmax", low=0)
    contrast_tau: float = option("τ, what the momentum encoder takes from the online one per update", low=0, high=1)
    contrast_pad: int = option("views are crops smaller by this, padded by this, and cropped to the old size", low=0)

    def check(self, config: Config) -> None:
        super().check(config)
        _check_encoder_learns(config)
        image_size = config.environment.image_size
        if self.contrast_pad >= image_size:
            raise InputError(
                f"contrast_pad: {self.contrast_pad} is not allowed; allowed: less than image_size, {image_size}"
            )

    def fitted_to_images(self, side: int) -> dict[str, Any]:
        return {"contrast_pad": min(self.contrast_pad, side // 4)}


@dataclass(frozen=True)
class CurlSacConfig(SacConfig):
    """CURL for continuous actions."""

    contrast_learning_rate: float = option("Adam's learning rate for encoder and similarity", low=0)

    def check(self, config: Config) -> None:
        super().check(config)
        _check_encoder_learns(config)

    def fitted_to_images(self, side: int) -> dict[str, Any]:
        """Views are crops that leave a sixth out, as 84 of 100 pixels; of whole images both would be the same."""
        return {"crop_size": max(1, side - max(1, side // 6))}


@dataclass(frozen=True)
class DrqSacConfig(SacConfig):
    """DrQ for continuous actions."""

    shift_pad: int = option("augmentation: random shift by up to this many pixels", low=0)
    views: int = option("M, augmented views of s_t over which the critic's loss is averaged", low=1)
    target_views: int = option("K of DrQ, augmented views of s_{t+1} over which targets are averaged", low=1)

    def check(self, config: Config) -> None:
        super().check(config)
        image_size = config.environment.image_size
        if self.crop_size != image_size:
            raise InputError(
                f"crop_size: {self.crop_size} is not allowed; allowed: image_size, {image_size}, since shifts keep it"
            )

    def fitted_to_images(self, side: int) -> dict[str, Any]:
        """Images stay whole and are shifted by a twelfth of their side at most: 4 pixels are much of a small one."""
        return {"crop_size": side, "shift_pad": min(self.shift_pad, max(1, side // 12))}


@dataclass(frozen=True)
class SacAeConfig(SacConfig):
    """SAC+AE."""

    decoder_learning_rate: float = option("Adam's learning rate for the decoder", low=0)
    decoder_weight_decay: float = option("what is added to the decoder's gradient, times its weights", low=0)
    latent_weight: float = option("weight of the penalty ½‖z‖² beside the reconstruction", low=0)

    def check(self, config: Config) -> None:
        super().check(config)
        _check_encoder_learns(config)

    def fitted_to_images(self, side: int) -> dict[str, Any]:
        """Images stay whole: SAC+AE has no augmentation."""
        return {"crop_size": side}


def _check_encoder_learns(config: Config) -> None:
    if config.encoder_from:
        raise InputError(
            f"encoder_from: {config.encoder_from!r} is not allowed with {config.method}, whose own loss trains the "
            "encoder; allowed: with --method rl"
        )


def derived(kind: type[Options], base: AgentConfig, **changes: Any) -> Options:
    """The options of an agent: those of another one, and what differs."""
    return kind(**{**{f.name: getattr(base, f.name) for f in fields(base)}, **changes})


NEVER_CLIPPED = 1e9  # a norm that no gradient reaches: the source does not clip
NO_AUGMENTATION = {"shift_pad": 0, "intensity_scale": 0.0}

DER = derived(
    DerConfig,
    RAINBOW,
    **NO_AUGMENTATION,  # [D]
    hidden=512,  # [D]
    noisy_sigma=0.1,  # [D] its noisy layers
    n_step=10,  # [D]; DER's paper has 20
    updates_per_step=1.0,  # [D] update_period
    learning_rate=1e-4,  # [D]
    max_grad_norm=NEVER_CLIPPED,  # [D]
    target_period=2_000,  # [D] agent steps, each with one update
    priority_beta_start=0.5,  # [D] weights are 1/√P
    priority_beta_end=0.5,  # [D]
)
OTR = derived(
    OtrConfig,
    DER,
    noisy_sigma=0.0,  # [D]
    n_step=3,  # [D]
    updates_per_step=8.0,  # [D] num_updates_per_train_step
    learning_rate=6.25e-5,  # [D]
    target_period=4_000,  # [D] 500 agent steps, each with eight updates
    epsilon_end=0.01,  # [D] epsilon_train
    epsilon_decay_steps=50_000,  # [D]
)
CURL_RAINBOW = derived(
    CurlRainbowConfig,
    RAINBOW,
    **NO_AUGMENTATION,  # [CR] Rainbow's own loss
    channels=(32, 64),  # [CR] architecture data-efficient
    kernel_sizes=(5, 5),  # [CR]
    strides=(5, 5),  # [CR]
    noisy_sigma=0.1,  # [CR]
    n_step=20,  # [CR]
    updates_per_step=1.0,  # [CR] replay-frequency
    target_period=2_000,  # [CR] agent steps, each with one update
    contrast_size=128,  # [CR]
    contrast_weight=1.0,  # [CR]
    contrast_scale=0.1,  # [CR]
    contrast_tau=0.001,  # [CR] momentum 0.999
    contrast_pad=4,  # [CR] crop to 80, pad by 4, crop to 84
)
CURL_RAINBOW_LIGHT = replace(CURL_RAINBOW, contrast_weight=0.01)  # [CR] on four games
DRQ_DQN = derived(
    DrqDqnConfig,
    DER,
    atoms=1,  # [D] num_atoms
    noisy_sigma=0.0,  # [D]
    n_step=10,  # [D]
    target_period=1,  # [D]
    shift_pad=4,  # [D] img_pad
    intensity_scale=0.05,  # [D]
    priority_exponent=0.0,  # [D] replay_scheme uniform
    epsilon_end=0.1,  # [D] epsilon_train; DrQ(ε) has 0.01
    epsilon_decay_steps=5_000,  # [D]
)

FILTERS = (32, 32, 32, 32)  # [CS], [Q], [AE]
CURL_SAC = derived(
    CurlSacConfig,
    SAC,
    channels=FILTERS,
    encoder_tanh=False,  # [CS] output_logits
    batch_size=512,  # [CI]; the script has 128
    contrast_learning_rate=1e-3,  # [CS] encoder_lr
)
CURL_CHEETAH = replace(CURL_SAC, learning_rate=2e-4, contrast_learning_rate=2e-4)  # [B]
DRQ_SAC = derived(
    DrqSacConfig,
    SAC,
    channels=FILTERS,
    batch_size=512,  # [Q] its comment on the paper's runs; its default is 128
    temperature_learning_rate=1e-3,  # [Q] one learning rate for all
    temperature_beta1=0.9,  # [Q] Adam's default
    encoder_tau=0.01,  # [Q] critic_tau, of the whole critic
    shift_pad=4,  # [Q] image_pad
    views=2,  # [Q]
    target_views=2,  # [Q]
)
SAC_AE = derived(
    SacAeConfig,
    SAC,
    channels=FILTERS,
    batch_size=128,  # [AE]
    decoder_learning_rate=1e-3,  # [AE]
    decoder_weight_decay=1e-7,  # [AE] decoder_weight_lambda
    latent_weight=1e-6,  # [AE] decoder_latent_lambda
)

# Grids of 10 × 10 cells and a plane of 12 × 12 pixels: small networks, sized for two CPU cores, and target networks
# that are copied more often because there are fewer updates. [P]
SMALL = {"noisy_sigma": 0.1, "target_period": 100, **NO_AUGMENTATION}
SMALL_GREEDY = {**SMALL, "noisy_sigma": 0.0, "epsilon_end": 0.05}
SMALL_CONTRAST = {f.name: getattr(CURL_RAINBOW, f.name) for f in fields(CURL_RAINBOW) if "contrast" in f.name}
SMALL_CONTRAST |= {"contrast_size": 32, "contrast_pad": 1, "contrast_weight": 0.1, "contrast_tau": 0.01}
SMALL_DQN = {"atoms": 1, "target_period": 1, "target_tau": 0.02, "priority_exponent": 0.0, "intensity_scale": 0.05}
DERS = {
    "": DER,
    "minatar": derived(DerConfig, MINATAR.agent, **SMALL),
    "toy": derived(DerConfig, CATCH.agent, **SMALL),
}
OTRS = {
    "": OTR,
    "minatar": derived(
        OtrConfig, MINATAR.agent, **SMALL_GREEDY, n_step=3, updates_per_step=1.0, epsilon_decay_steps=10_000
    ),
    "toy": derived(OtrConfig, CATCH.agent, **SMALL_GREEDY, updates_per_step=1.0, epsilon_decay_steps=2_000),
}
CURL_RAINBOWS = {
    "": CURL_RAINBOW,
    **{f"atari/{game}": CURL_RAINBOW_LIGHT for game in ("pong", "boxing", "private_eye", "freeway")},  # [CR]
    "minatar": derived(CurlRainbowConfig, MINATAR.agent, **SMALL, **SMALL_CONTRAST),
    "toy": derived(CurlRainbowConfig, CATCH.agent, **SMALL, **SMALL_CONTRAST),
}
DRQ_DQNS = {
    "": DRQ_DQN,
    "minatar": derived(DrqDqnConfig, MINATAR.agent, **{**SMALL_GREEDY, **SMALL_DQN}, epsilon_decay_steps=10_000),
    "toy": derived(DrqDqnConfig, CATCH.agent, **{**SMALL_GREEDY, **SMALL_DQN}, epsilon_decay_steps=2_000),
}
CURL_SACS = {
    "": CURL_SAC,
    "dmc/cheetah-run": CURL_CHEETAH,
    "toy": derived(CurlSacConfig, REACH.agent, encoder_tanh=False, crop_size=10, contrast_learning_rate=1e-3),
}
DRQ_SACS = {
    "": DRQ_SAC,
    "toy": derived(DrqSacConfig, REACH.agent, encoder_tau=0.05, shift_pad=1, views=2, target_views=2),
}
SAC_AES = {
    "": SAC_AE,
    "toy": derived(SacAeConfig, REACH.agent, decoder_learning_rate=1e-3, decoder_weight_decay=1e-7, latent_weight=1e-6),
}

# The class of each agent, the actions it takes, and its hyperparameters by task.
AGENTS: dict[str, tuple[str, ActionKind, Mapping[str, AgentConfig]]] = {
    "der": ("efficient_rainbow:EfficientRainbow", "discrete", DERS),
    "otr": ("efficient_rainbow:Otr", "discrete", OTRS),
    "curl-rainbow": ("curl:CurlRainbow", "discrete", CURL_RAINBOWS),
    "curl-sac": ("curl:CurlSac", "continuous", CURL_SACS),
    "drq-dqn": ("drq:DrqDqn", "discrete", DRQ_DQNS),
    "drq-sac": ("drq:DrqSac", "continuous", DRQ_SACS),
    "sac-ae": ("sac_ae:SacAe", "continuous", SAC_AES),
}

# What the baselines change in options that are not their agents' own; nothing on the small tasks.
NOTHING: dict[str, dict[str, Any]] = {"minatar": {}, "toy": {}}
RUN_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "der": {"": {"learning_starts": 1_600}, **NOTHING},  # [D] min_replay_history
    "otr": {"": {"learning_starts": 20_000}, **NOTHING},  # [D]
    "curl-rainbow": {"": {"learning_starts": 1_600}, **NOTHING},  # [CR] learn-start
    "drq-dqn": {"": {"learning_starts": 1_600, "eval_epsilon": 0.05}, **NOTHING},  # [D]; DrQ(ε) has 0.001
    "drq-sac": {"": {"image_size": 84}, **NOTHING},  # [Q]
    # [AE] has room for 1,000,000 transitions; the longest runs of the tables, 500,000 frames of which each action takes
    # two, never have more than 260,000 entries.
    "sac-ae": {"": {"image_size": 84, "capacity": 260_000}, **NOTHING},
}

CURL: dict[ActionKind, str] = {"discrete": "curl-rainbow", "continuous": "curl-sac"}
DRQ: dict[ActionKind, str] = {"discrete": "drq-dqn", "continuous": "drq-sac"}
ALONE: dict[str, Any] = {"K": 0, "M": "0"}  # without the auxiliary objective

# The agents of each baseline, what it changes in the objective, and what it is.
METHODS: dict[str, tuple[dict[ActionKind, str], dict[str, Any], str]] = {
    "der": ({"discrete": "der"}, ALONE, "data-efficient Rainbow (discrete actions)"),
    "otr": ({"discrete": "otr"}, ALONE, "overtrained Rainbow: eight updates per step (discrete actions)"),
    "sac-ae": ({"continuous": "sac-ae"}, ALONE, "SAC with an autoencoder (continuous actions)"),
    "curl": (CURL, ALONE, "Rainbow or SAC with a contrastive loss on two views"),
    "drq": (DRQ, ALONE, "DQN or SAC on randomly shifted images"),
    "curl-virtual": (CURL, {}, "curl with the prediction and cycle losses of playvirtual on top"),
    "drq-virtual": (DRQ, {}, "drq with the prediction and cycle losses of playvirtual on top"),
}
