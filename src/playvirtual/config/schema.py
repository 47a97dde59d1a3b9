"""The configuration of a run: frozen, typed, validated. Values stand in hyperparameters.py, meaning and limits here."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

from playvirtual.config import registry
from playvirtual.device import check_device_name
from playvirtual.envs.arguments import as_keywords
from playvirtual.envs.env import EnvironmentConfig
from playvirtual.envs.modules import check_imports
from playvirtual.errors import InputError, unknown, unregistered
from playvirtual.messages import counted
from playvirtual.options import LARGEST_INT, UnknownOption, check_intervals, coerce, leaves, option, types_of

PRESETS = ("paper", "reference")
SIZES = ("small", "medium", "paper")
Shape = tuple[int, int, int]  # (C, H, W)
LARGEST_BETA = 0.999999  # Adam divides by 1 − β^t


@dataclass(frozen=True)
class ObjectiveConfig:
    """The auxiliary objective: Section 3 of the paper and its ablations."""

    K: int = option("steps predicted forward, and back; 0: no prediction at all", low=0)
    M: str = option("virtual trajectories per sample: a number, or a multiple of the action count such as 2A")
    lambda_pred: float = option("weight of the prediction loss, which sums over K steps", low=0)
    lambda_cyc_max: float = option("weight of the cycle loss once the warm-up is over", low=0)
    i_end: int = option("steps of the Gaussian warm-up of the cycle loss' weight; 0: no warm-up", low=0)
    metric: Literal["projection", "latent"] = option("the space in which the cycle must close")
    latent_distance: Literal["cosine", "mse", "normalised-mse"] = option(
        "distance of the latent metric; normalised-mse is the mean, not the sum, of cosine's squared differences"
    )
    constraint: Literal["end", "every"] = option("the cycle must close at its end, or match at every step")
    virtual_actions: str = option(
        "the sampler of virtual actions: uniform, perturbed (the recorded ones with noise), or a registered one"
    )
    sigma: float = option(
        "scale of the sampler's noise; perturbed: Gaussian std, or for discrete actions the chance of a new one", low=0
    )
    cycle_trains_forward: bool = option("the cycle loss trains the forward model, not only encoder and backward model")
    real_cycle: bool = option("the cycle loss is also taken along the recorded actions")
    backward_prediction: bool = option(
        "the backward model predicts the recorded past from the last state, with the weight of the forward prediction",
        default=False,
    )


@dataclass(frozen=True)
class AgentConfig:
    """What training asks of every agent's options; an agent's own options are a subclass."""

    paper_agent: ClassVar[str] = ""  # the name of the paper's agent whose options these extend; "": of none
    epsilon_greedy: ClassVar[bool] = False  # it takes random actions itself: fitted settings add no `random_steps`

    batch_size: int = option("transitions or sequences per update", low=1)
    updates_per_step: float = option("updates per agent step; 0.25: one every four steps", low=0)

    def lookahead(self, K: int) -> int:
        """The entries of the replay buffer after a start that a batch of this agent reads."""
        return 1

    def check(self, config: Config) -> None:
        """Raises an InputError where the options of this agent do not fit together or to the configuration."""

    def update_bytes(self, K: int, num_virtual: int, observation_shape: Shape, latent: int) -> int:
        """About how much memory an update needs at its peak, rather less than more; `latent`: numbers of a state z."""
        return self.batch_size * 2 * image_bytes(observation_shape)

    def own_numbers(self, networks: Collection[str]) -> set[str]:
        """The options that settings fitted to an environment leave as they are; `networks` are those of networks.

        They are those in which an agent differs from the paper's, but not those of its networks, which must fit the
        images; for an agent that extends none of the paper's they are all.
        """
        if not self.paper_agent:
            return {f.name for f in fields(self)}
        paper = registry.agent(self.paper_agent).options_for("")
        return {f.name for f in fields(paper) if getattr(self, f.name) != getattr(paper, f.name)} - set(networks)

    def fitted_to_images(self, side: int) -> dict[str, Any]:
        """Option → value of this agent's own options that must fit images of that side."""
        return {}

    def fitted_to_steps(self, steps: int) -> dict[str, Any]:
        """Option → value of this agent's own options that must fit a run of so many steps."""
        return {}

    def fit_reasons(self, config: Config, earned: str) -> list[str]:
        """Why this agent's options are fitted as they are, a line for each; `earned` says what random play earns."""
        return []


@dataclass(frozen=True)
class RainbowConfig(AgentConfig):
    """The discrete agent: Rainbow's head on an encoder shared with the auxiliary objective."""

    paper_agent: ClassVar[str] = "rainbow"

    channels: tuple[int, ...] = option("channels of the encoder's convolutions", low=1)
    kernel_sizes: tuple[int, ...] = option("their kernel sizes", low=1)
    strides: tuple[int, ...] = option("their strides", low=1)
    latent: int = option("size of a vector latent; 0: keep the feature map and use convolutional dynamics", low=0)
    dynamics_hidden: int = option("hidden units of fully connected dynamics models", low=1)
    hidden: int = option("hidden units of the value and the advantage stream", low=1)
    atoms: int = option("bins of the return distribution", low=2)
    v_max: float = option("the distribution's support is [−v_max, v_max]", low=1e-6)
    noisy_sigma: float = option("initial σ₀ of the noisy layers", low=0)
    discount: float = option("γ", low=0, high=1)
    n_step: int = option("rewards summed before bootstrapping", low=1)
    learning_rate: float = option("Adam's learning rate", low=0)
    adam_beta1: float = option("Adam's β₁", low=0, high=LARGEST_BETA)
    adam_beta2: float = option("Adam's β₂", low=0, high=LARGEST_BETA)
    adam_eps: float = option("Adam's ε", low=0)
    max_grad_norm: float = option("gradients are clipped to this norm: encoder and head, DM, and BDM separately", low=0)
    target_period: int = option("updates between target network updates", low=1)
    target_tau: float = option("τ, what the target network takes from the online one; 1: a copy", low=0, high=1)
    target_moment: Literal["after-step", "before-step"] = option(
        "the target network is updated after the optimizer step, or before it and so is one update old"
    )
    shift_pad: int = option("augmentation: random shift by up to this many pixels", low=0)
    intensity_scale: float = option("augmentation: scale of the random intensity", low=0)
    priority_exponent: float = option("α of prioritized replay", low=0)
    priority_beta_start: float = option("β of the importance weights at the first step", low=0, high=1)
    priority_beta_end: float = option("β after priority_beta_steps", low=0, high=1)
    priority_beta_steps: int = option("steps over which β grows", low=1)
    _: KW_ONLY  # agents that extend this one have options without a default
    background: float = option("shade, from 0 to 1, that is subtracted from pixels", low=0, high=1, default=0.0)
    new_priority: Literal["one", "largest"] = option(
        "priority of an entry until its first update: 1, or the largest so far", default="one"
    )

    def lookahead(self, K: int) -> int:
        return max(K, self.n_step)

    def update_bytes(self, K: int, num_virtual: int, observation_shape: Shape, latent: int) -> int:
        width = latent + self.dynamics_hidden if self.latent else 2 * latent
        trajectory = 4 * (4 * K * width + 12 * self.hidden)
        activations = _activation_bytes(observation_shape, self.channels, self.kernel_sizes, self.strides)
        sequence = (K + 1) * image_bytes(observation_shape) + 2 * activations
        return self.batch_size * (sequence + num_virtual * trajectory)

    def check(self, config: Config) -> None:
        _check_convolutions(self.channels, self.kernel_sizes, self.strides)

    def fit_reasons(self, config: Config, earned: str) -> list[str]:
        clip = config.environment.reward_clip
        return [
            f"values within ±{self.v_max:g} at a discount of {self.discount:g}: random play earned {earned}, "
            f"{f'clipped to ±{clip:g}' if clip else 'not clipped'} (--v-max, --discount, --reward-clip)"
        ]


@dataclass(frozen=True)
class SacConfig(AgentConfig):
    """The continuous agent: SAC on an encoder shared with the auxiliary objective."""

    paper_agent: ClassVar[str] = "sac"

    channels: tuple[int, ...] = option("channels of the encoder's convolutions", low=1)
    kernel_sizes: tuple[int, ...] = option("their kernel sizes", low=1)
    strides: tuple[int, ...] = option("their strides", low=1)
    latent: int = option("size of the latent state", low=1)
    encoder_tanh: bool = option("the latent state is squashed by a tanh after its LayerNorm")
    hidden: int = option("hidden units of each of the actor's and the critics' two layers", low=1)
    dynamics_hidden: int = option("hidden units of the dynamics models", low=1)
    projection_hidden: int = option("hidden units of the projection and the prediction head", low=1)
    log_std_min: float = option("smallest logarithm of the policy's standard deviation")
    log_std_max: float = option("largest logarithm of the policy's standard deviation")
    discount: float = option("γ", low=0, high=1)
    auxiliary_batch_size: int = option("sequences per update of the auxiliary objective", low=1)
    learning_rate: float = option("Adam's learning rate for encoder, critic and actor", low=0)
    auxiliary_learning_rate: float = option("the same for encoder, dynamics models and heads", low=0)
    adam_beta1: float = option("Adam's β₁", low=0, high=LARGEST_BETA)
    adam_beta2: float = option("Adam's β₂", low=0, high=LARGEST_BETA)
    adam_eps: float = option("Adam's ε", low=0)
    separate_encoder_optimizer: bool = option(
        "in the auxiliary update the encoder is clipped and stepped by an Adam of its own and then again with the rest"
    )
    max_grad_norm: float = option("gradients of the auxiliary update are clipped to this norm", low=0)
    initial_temperature: float = option("α of the entropy bonus at the start", low=1e-8)
    temperature_learning_rate: float = option("Adam's learning rate for log α", low=0)
    temperature_beta1: float = option("Adam's β₁ for log α", low=0, high=LARGEST_BETA)
    actor_period: int = option("critic updates per update of actor and temperature", low=1)
    critic_target_period: int = option("updates between updates of the target critic", low=1)
    q_tau: float = option("τ, what the target critic's Q functions take from the online ones each time", low=0, high=1)
    encoder_tau: float = option("τ of the target critic's encoder", low=0, high=1)
    momentum_period: int = option("updates between updates of the momentum encoder and projection", low=1)
    momentum_tau: float = option("τ of the momentum encoder and projection", low=0, high=1)
    target_projection: Literal["copy", "independent"] = option(
        "the momentum projection starts as a copy of the online one, or with weights of its own"
    )
    crop_size: int = option("size of what the networks see: random crops in updates, the center when acting", low=1)
    intensity_scale: float = option("augmentation: scale of the random intensity (auxiliary objective)", low=0)

    def lookahead(self, K: int) -> int:
        return max(K, 1)

    def update_bytes(self, K: int, num_virtual: int, observation_shape: Shape, latent: int) -> int:
        crop = (observation_shape[0], self.crop_size, self.crop_size)
        activations = _activation_bytes(crop, self.channels, self.kernel_sizes, self.strides)
        transitions = self.batch_size * (2 * image_bytes(observation_shape) + activations)
        trajectory = 4 * (4 * K * (latent + self.dynamics_hidden) + 5 * self.projection_hidden)
        sequence = (K + 1) * image_bytes(observation_shape) + activations
        return max(transitions, self.auxiliary_batch_size * (sequence + num_virtual * trajectory))

    def check(self, config: Config) -> None:
        _check_convolutions(self.channels, self.kernel_sizes, self.strides)
        image_size = config.environment.image_size
        if self.crop_size > image_size:
            raise InputError(
                f"crop_size: {self.crop_size} is not allowed; allowed: 1 to image_size, {image_size}, or the size "
                "small, which fits it to the image (not for toys)"
            )
        if self.log_std_min > self.log_std_max:
            raise InputError(
                f"log_std_min: {self.log_std_min} is not allowed; allowed: log_std_max, {self.log_std_max}, or less"
            )


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer."""

    capacity: int = option("frames kept", low=2)
    learning_starts: int = option("agent steps of random play before the first update", low=1)
    random_steps: int = option(
        "agent steps after them over which the share of random actions falls from 1 to 0; 0: the agent alone explores",
        low=0,
        default=0,
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """How a trained agent is scored."""

    eval_episodes: int = option("episodes of an evaluation", low=1)
    eval_envs: int = option("environments that play them side by side", low=1)
    eval_every: int = option("steps between evaluations; 0: at the end only", low=0)
    eval_epsilon: float = option("chance of a random action in evaluation (discrete actions)", low=0, high=1)


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    task: str = option("what to learn; see `playvirtual list tasks`")
    method: str = option("a row of the paper's tables; see `playvirtual list methods`")
    preset: str = option("paper: the text's values; reference: the released code's where the two disagree")
    seed: int = option("decides everything that is random", low=0, high=LARGEST_INT)
    steps: int = option("length of the run, in step_unit", low=1)
    step_unit: Literal["agent", "environment"] = option(
        "what steps, schedules and evaluation intervals count: agent steps, or environment frames"
    )
    device: str = option("auto, cpu, cuda or cuda:N")
    threads: int = option("CPU threads of the networks; 0: PyTorch's choice when the run begins", low=0, high=1024)
    compile: Literal["off", "cudagraph", "full"] = option(
        "on a GPU: off, updates as CUDA graphs, or full: compiled by TorchInductor too; the CPU runs them eagerly"
    )
    precision: Literal["fp32", "tf32", "bf16"] = option(
        "precision of the updates on a GPU; one without tensor cores for it, as the CPU, computes in fp32"
    )
    log_every: int = option("agent steps between two lines of metrics", low=1)
    checkpoint_every: int = option(
        "agent steps between two checkpoints; 0: only at evaluations, at the end, and when interrupted", low=0
    )
    video_at_evaluation: bool = option("record the first env of every evaluation into videos/; changes no number")
    environment: EnvironmentConfig = option("how the environment is shown")
    objective: ObjectiveConfig = option("the auxiliary objective")
    agent: AgentConfig = option("the agent")
    replay: ReplayConfig = option("the replay buffer")
    evaluation: EvaluationConfig = option("how it is scored")
    encoder_from: str = option(
        "a run folder whose encoder is loaded and kept frozen, for RL alone; empty: none", default=""
    )
    imports: tuple[str, ...] = option("modules that are imported before the task is looked up", default=())
    size: str = option("small, medium or paper: networks and images; empty: the task's own settings", default="")
    fitted_to: str = option("what the settings of an environment of one's own are fitted to; empty: none", default="")
    init_from: str = option(
        "a run folder or an export whose network weights the agent starts with, with new optimizers and replay; "
        "empty: none",
        default="",
    )
    stop_at_score: float | None = option(
        "the run ends at the first evaluation whose mean return reaches this; none: it takes all its steps",
        default=None,
    )

    @property
    def frames_per_step(self) -> int:
        """What one agent step adds to what `steps`, schedules and evaluation intervals count."""
        return self.environment.action_repeat if self.step_unit == "environment" else 1

    @property
    def first_update(self) -> float:
        """The agent steps taken when the first update is made; infinite without updates."""
        rate = self.agent.updates_per_step
        return self.replay.learning_starts - 1 + (math.ceil(1 / rate - 1e-9) if rate else math.inf)

    @property
    def agent_steps(self) -> int:
        """The whole agent steps that reach `steps`."""
        return -(-self.steps // self.frames_per_step)


def image_bytes(shape: Shape) -> int:
    """The memory of an observation in a batch: as it is stored, and as numbers of 32 bits."""
    return 5 * math.prod(shape)


def _activation_bytes(
    shape: Shape, channels: Sequence[int], kernel_sizes: Sequence[int], strides: Sequence[int]
) -> int:
    """The memory of what an encoder's convolutions keep of one observation for the gradients."""
    _, height, width = shape
    total = 0
    for channel, kernel, stride in zip(channels, kernel_sizes, strides, strict=True):
        height, width = max(1, (height - kernel) // stride + 1), max(1, (width - kernel) // stride + 1)
        total += 2 * 4 * channel * height * width
    return total


def shared_options() -> frozenset[str]:
    """The names of the options that runs of every agent have."""
    groups = (Config, EnvironmentConfig, ObjectiveConfig, ReplayConfig, EvaluationConfig)
    return frozenset(f.name for group in groups for f in fields(group))


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """A copy with the named fields replaced wherever in the groups they are, coerced to their types, checked."""
    return validated(with_defaults(config, values))


def with_defaults(config: Config, values: Mapping[str, Any]) -> Config:
    """`with_values` before the checks: for defaults that further options may still make fit together."""
    known = {f.name for f, _, _ in leaves(config)}
    for name in values:
        if name not in known:
            raise option_of_other_agent(name, config) or UnknownOption(name, known)
    changed: Config = _replace(config, values)
    return changed


def option_of_other_agent(name: str, config: Config, shown: str | None = None) -> InputError | None:
    """The error for a field that only other agents than the configuration's have; None if it is no such field."""
    own = registry.agent_of(config.agent)
    if name in {f.name for f in fields(config.agent)}:
        return None
    others = [spec for spec in registry.agents() if name in {f.name for f in fields(spec.config)}]
    if not others:
        return None
    if here := [spec for spec in others if spec.actions & own.actions]:
        agents = ", ".join(_with_method(spec.name) for spec in here)
        return InputError(f"option: {(shown or name)!r} is not one of the agent {own.name}; allowed: with {agents}")
    kinds = sorted({kind for spec in others for kind in spec.actions})
    return InputError(
        f"option: {(shown or name)!r} is not one of {config.task}, which has {' or '.join(sorted(own.actions))} "
        f"actions; allowed: on tasks with {' or '.join(kinds)} ones"
    )


def _with_method(agent: str) -> str:
    """An agent's name, and where no method has the same name, the first method that picks it."""
    methods = [spec.name for spec in registry.methods() if agent in spec.agents.values()]
    return agent if agent in methods or not methods else f"{agent} (method {methods[0]})"


def _replace(config: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a dataclass of options with the named fields replaced, in its groups as well."""
    hints = types_of(config.__class__)
    changes: dict[str, Any] = {}
    for f in fields(config):
        current = getattr(config, f.name)
        if is_dataclass(current):
            changes[f.name] = _replace(current, values)
        elif f.name in values:
            changes[f.name] = coerce(f.name, hints[f.name], values[f.name])
    return replace(config, **changes)


def validated(config: Config) -> Config:
    """The same configuration, or an InputError that names the first field out of its limits."""
    check_intervals(config)
    registry.method(config.method)
    if config.preset not in PRESETS:
        raise unknown("preset", config.preset, PRESETS)
    check_device_name(config.device)
    if config.objective.virtual_actions not in registry.sampler_names():
        raise unregistered("virtual_actions", config.objective.virtual_actions, registry.sampler_names())
    if not re.fullmatch(r"\d{1,9}(\.\d+)?A|\d{1,9}", config.objective.M):
        raise InputError(
            f"M: {config.objective.M!r} is not allowed; allowed: a whole number such as 12, or a multiple of the "
            "number of actions such as 2A"
        )
    if config.encoder_from and config.objective.K:
        raise InputError(
            f"encoder_from: a fixed encoder learns from no prediction, but K is {config.objective.K}; allowed: with "
            "--method rl"
        )
    if config.size and config.size not in SIZES:
        raise unknown("size", config.size, SIZES)
    check_imports(config.imports)
    as_keywords(config.environment.env_args)
    config.agent.check(config)
    _check_replay(config)
    return config


def _check_convolutions(channels: Sequence[int], kernel_sizes: Sequence[int], strides: Sequence[int]) -> None:
    if not len(channels) == len(kernel_sizes) == len(strides):
        raise InputError(
            f"channels, kernel_sizes, strides: {channels}, {kernel_sizes}, {strides} differ in length; "
            "allowed: one entry per convolution in each"
        )


def _check_replay(config: Config) -> None:
    """There must be something to sample at the first update, and room for it later."""
    span, stack = config.agent.lookahead(config.objective.K), config.environment.frame_stack
    if config.replay.learning_starts <= span:
        raise InputError(
            f"learning_starts: {config.replay.learning_starts} is not allowed; allowed: more than {span}, "
            "the steps that a batch looks ahead"
        )
    # One entry more, since the last frame of a truncated episode is an entry at which no batch can start.
    room = span + stack + 1
    if config.replay.capacity < room:
        raise InputError(
            f"capacity: {config.replay.capacity} is not allowed; allowed: {room} or more, for the "
            f"{counted(span, 'step')} that a batch looks ahead, the {counted(stack, 'frame')} of an observation and "
            "the last one of an episode"
        )


def num_virtual(M: str, actions: int) -> int:
    """The number of virtual trajectories: '12' is 12, '2A' is twice the number of actions (or action dimensions).

    A multiple above 0 is rounded to at least one trajectory.
    """
    if not M.endswith("A"):
        return int(M)
    factor = float(M[:-1])
    return max(round(factor * actions), 1 if factor else 0)
