"""The paper's numbers, each with its source, and what presets and methods change in them.

Sources: [T1] the paper's table "Hyperparameters used for Atari", [T2] "Hyperparameters used for DMControl",
[S] the paper's text, [C] the authors' released code where the paper is silent, [P] this project's own choice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from playvirtual.config.schema import Config, EvaluationConfig, ObjectiveConfig, RainbowConfig, ReplayConfig, SacConfig
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.registry import ActionKind

RAINBOW = RainbowConfig(
    channels=(32, 64, 64),  # [T1]
    kernel_sizes=(8, 4, 3),  # [T1]
    strides=(4, 2, 1),  # [T1]
    latent=0,  # [S] z is a feature map
    dynamics_hidden=512,  # unused with a feature map
    hidden=256,  # [T1]
    atoms=51,  # [T1]
    v_max=10.0,  # [C]
    noisy_sigma=0.5,  # [T1]
    discount=0.99,  # [T1]
    n_step=10,  # [T1]
    batch_size=32,  # [T1]
    updates_per_step=2.0,  # [T1]
    learning_rate=1e-4,  # [T1]
    adam_beta1=0.9,  # [T1]
    adam_beta2=0.999,  # [T1]
    adam_eps=1.5e-4,  # [T1]
    max_grad_norm=10.0,  # [T1]
    target_period=1,  # [T1]
    target_tau=1.0,  # [T1] τ = 0 there: what the target keeps of itself
    target_moment="after-step",  # [S]
    shift_pad=4,  # [C]
    intensity_scale=0.05,  # [C]
    priority_exponent=0.5,  # [T1]
    priority_beta_start=0.4,  # [T1]
    priority_beta_end=1.0,  # [T1]
    priority_beta_steps=100_000,  # [C]
)
ATARI = Config(
    task="",
    method="playvirtual",
    preset="paper",
    seed=1,
    steps=100_000,  # [T1] training steps
    step_unit="agent",
    device="auto",
    threads=0,
    compile="full",
    precision="bf16",  # [P] beside tf32 in docs/performance.md
    log_every=1_000,
    checkpoint_every=5_000,  # [P] what a killed run loses at most
    video_at_evaluation=False,
    environment=EnvironmentConfig(
        frame_stack=4,  # [T1]
        stack_fill="zeros",  # [C]
        image_size=84,  # [T1] observation downsampling
        grayscale=True,  # [T1]
        action_repeat=4,  # [T1]
        max_episode_frames=108_000,  # [T1]
        life_loss_is_terminal=True,  # [C]
        reward_clip=1.0,  # [T1] [−1, 1]
    ),
    objective=ObjectiveConfig(
        K=9,  # [T1]
        M="2A",  # [T1]
        lambda_pred=1.0,  # [T1]
        lambda_cyc_max=1.0,  # [T1]
        i_end=50_000,  # [T1]
        metric="projection",  # [S]
        latent_distance="cosine",  # [S]
        constraint="end",  # [S]
        virtual_actions="uniform",  # [S]
        sigma=0.05,  # [S] the best of its table
        cycle_trains_forward=True,  # [S]
        real_cycle=False,  # [S]
        backward_prediction=False,  # [S]
    ),
    agent=RAINBOW,
    replay=ReplayConfig(capacity=100_000, learning_starts=2_000),  # [T1]
    evaluation=EvaluationConfig(eval_episodes=100, eval_envs=100, eval_every=0, eval_epsilon=0.001),  # [T1], [C]
)

# Grids of 10 × 10 cells: a small encoder with a vector latent, sized for two CPU cores. [P]
SMALL_AGENT = replace(
    RAINBOW,
    channels=(16,),
    kernel_sizes=(3,),
    strides=(1,),
    latent=64,
    dynamics_hidden=64,
    hidden=128,
    n_step=5,
    updates_per_step=0.25,
    learning_rate=1e-3,
    shift_pad=0,
)
MINATAR = replace(
    ATARI,
    steps=50_000,
    precision="tf32",
    threads=1,  # networks this small lose more than they gain by sharing work
    environment=replace(
        ATARI.environment,
        frame_stack=1,
        image_size=10,
        grayscale=False,
        action_repeat=1,
        max_episode_frames=5_000,
    ),
    objective=replace(ATARI.objective, K=3, M="1A", i_end=25_000),
    agent=replace(SMALL_AGENT, priority_beta_steps=50_000),
    replay=ReplayConfig(capacity=100_000, learning_starts=1_000),
    evaluation=EvaluationConfig(eval_episodes=50, eval_envs=50, eval_every=0, eval_epsilon=0.001),
)
# One drop decides everything: Monte-Carlo returns, a support that fits ±1, and auxiliary losses that leave the
# reward its say. [P]
CATCH = replace(
    MINATAR,
    steps=8_000,
    log_every=250,
    checkpoint_every=1_000,
    objective=replace(MINATAR.objective, M="2A", i_end=4_000, lambda_pred=0.3, lambda_cyc_max=0.3),
    agent=replace(SMALL_AGENT, n_step=10, v_max=2.0, updates_per_step=0.5, priority_beta_steps=8_000),
    replay=ReplayConfig(capacity=100_000, learning_starts=500),
    evaluation=EvaluationConfig(eval_episodes=100, eval_envs=100, eval_every=1_000, eval_epsilon=0.001),
)

SAC = SacConfig(
    channels=(64, 64, 64, 64),  # [S] four convolutions, [C] 64 filters
    kernel_sizes=(3, 3, 3, 3),  # [C]
    strides=(2, 1, 1, 1),  # [C]
    latent=50,  # [C]
    encoder_tanh=True,  # [S]
    hidden=1024,  # [C]
    dynamics_hidden=512,  # [C]
    projection_hidden=512,  # [S]
    log_std_min=-10.0,  # [C]
    log_std_max=2.0,  # [C]
    discount=0.99,  # [T2]
    batch_size=512,  # [T2] policy batch size
    auxiliary_batch_size=128,  # [T2]
    updates_per_step=1.0,  # [C]
    learning_rate=1e-3,  # [T2] learning rate (θ_f, ω)
    auxiliary_learning_rate=5e-4,  # [T2] learning rate (θ_f, ξ_h, ξ_b)
    adam_beta1=0.9,  # [T2]
    adam_beta2=0.999,  # [T2]
    adam_eps=1e-8,  # [C]
    separate_encoder_optimizer=False,  # [S] Algorithm 1: one optimizer step
    max_grad_norm=10.0,  # [C]
    initial_temperature=0.1,  # [T2]
    temperature_learning_rate=1e-4,  # [T2] learning rate (α)
    temperature_beta1=0.5,  # [T2]
    actor_period=2,  # [C]
    critic_target_period=2,  # [T2]
    q_tau=0.01,  # [T2] Q-function EMA τ
    encoder_tau=0.05,  # [C]
    momentum_period=1,  # [T2] target network update period
    momentum_tau=0.05,  # [T2] target network EMA τ
    target_projection="copy",  # [S] a momentum projection head
    crop_size=84,  # [T2] observation downsampling
    intensity_scale=0.05,  # [C]
)
DMC = Config(
    task="",
    method="playvirtual",
    preset="paper",
    seed=1,
    steps=100_000,  # [S] DMControl-100k; DMControl-500k is 500_000
    step_unit="environment",  # [S]
    device="auto",
    threads=0,
    compile=ATARI.compile,
    precision=ATARI.precision,  # [P]
    log_every=500,
    checkpoint_every=2_500,  # [P]
    video_at_evaluation=False,
    environment=EnvironmentConfig(
        frame_stack=3,  # [T2]
        stack_fill="repeat",  # [C]
        image_size=100,  # [T2] observation rendering
        grayscale=False,  # [C]
        action_repeat=4,  # [T2] "otherwise"; see DMC_CHANGES
        max_episode_frames=0,  # the suite's own limit, 1000 frames; see DMC_CHANGES for LQR
        life_loss_is_terminal=False,
        reward_clip=0.0,  # [C]
    ),
    objective=replace(
        ATARI.objective,
        K=6,  # [T2]
        M="10",  # [T2]
        lambda_pred=1.0,  # [T2]
        lambda_cyc_max=1.0,  # [T2]
        i_end=50_000,  # [T2] environment steps
    ),
    agent=SAC,
    replay=ReplayConfig(capacity=100_000, learning_starts=1_000),  # [T2]
    evaluation=EvaluationConfig(eval_episodes=10, eval_envs=10, eval_every=5_000, eval_epsilon=0.0),  # [T2], [S]
)

# [T2] by task; the other tasks of a domain repeat actions as the domain's benchmark task does [P].
DMC_CHANGES: dict[str, dict[str, Any]] = {
    "finger": {"action_repeat": 2},
    "walker": {"action_repeat": 2},
    "cartpole": {"action_repeat": 8},
    "lqr": {"max_episode_frames": 1_000},  # [P] what the others have; the suite's own episodes may never end
}

CHEETAH = replace(DMC, agent=replace(SAC, learning_rate=2e-4, auxiliary_learning_rate=1e-4))  # [T2]

# A point steered on a plane of 12 × 12 pixels: small networks, sized for two CPU cores. [P]
REACH = replace(
    DMC,
    steps=2_000,
    step_unit="agent",
    precision="tf32",
    threads=1,
    log_every=100,
    checkpoint_every=500,
    environment=replace(DMC.environment, frame_stack=1, image_size=12, action_repeat=4),
    objective=replace(DMC.objective, K=4, M="4", i_end=1_000),
    agent=replace(
        SAC,
        channels=(16,),
        kernel_sizes=(3,),
        strides=(1,),
        hidden=128,
        dynamics_hidden=128,
        projection_hidden=64,
        discount=0.9,
        batch_size=64,
        auxiliary_batch_size=32,
        temperature_learning_rate=3e-3,
        q_tau=0.05,
        crop_size=12,
    ),
    replay=ReplayConfig(capacity=100_000, learning_starts=500),
    evaluation=EvaluationConfig(eval_episodes=50, eval_envs=50, eval_every=500, eval_epsilon=0.0),
)

# Environments of Gymnasium: the nearest benchmark's settings, every frame shown, the environment's own limits. [P]
GYM_DISCRETE = replace(
    ATARI,
    environment=replace(ATARI.environment, action_repeat=1, max_episode_frames=0, life_loss_is_terminal=False),
    evaluation=EvaluationConfig(eval_episodes=20, eval_envs=10, eval_every=10_000, eval_epsilon=0.001),
)
GYM_BOX = replace(
    DMC,
    step_unit="agent",
    environment=replace(DMC.environment, action_repeat=1),
    evaluation=replace(DMC.evaluation, eval_every=10_000),
)

# The settings of a task before preset, method and single options change them, by task or family and kind of actions.
DEFAULTS: dict[tuple[str, ActionKind], Config] = {
    ("atari", "discrete"): ATARI,
    ("minatar", "discrete"): MINATAR,
    ("toy/catch", "discrete"): CATCH,
    ("toy/reach", "continuous"): REACH,
    ("dmc", "continuous"): DMC,
    ("dmc/cheetah-run", "continuous"): CHEETAH,
    ("gym", "discrete"): GYM_DISCRETE,
    ("gym", "continuous"): GYM_BOX,
}

# The rows of the paper's tables: what each changes in the objective, and what it is.
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "rl": ({"K": 0, "M": "0"}, "Rainbow or SAC alone, no prediction (K = 0)"),
    "spr": ({"M": "0"}, "with the forward prediction loss (M = 0)"),
    "spr-bdm": ({"M": "0", "real_cycle": True}, "spr with cycles along the recorded actions only"),
    "spr-bdm-prediction": (
        {"M": "0", "backward_prediction": True},
        "spr with a backward model that predicts the recorded past: the other reading of spr-bdm",
    ),
    "playvirtual": ({}, "the paper's method: cycles over virtual trajectories"),
    "playvirtual-nd": ({"cycle_trains_forward": False}, "the cycle loss does not train the forward model"),
    "playvirtual-latent": ({"metric": "latent"}, "the cycle is compared in the latent space"),
    "playvirtual-every-step": ({"constraint": "every"}, "the cycle must match at every step, not only at its end"),
    "playvirtual-no-warmup": ({"i_end": 0}, "the cycle loss has its full weight from the start"),
    "playvirtual-perturbed": (
        {"virtual_actions": "perturbed"},
        "virtual actions are the recorded ones with noise sigma",
    ),
    "playvirtual-real-cycle": ({"real_cycle": True}, "the cycle loss also along the recorded actions"),
}
