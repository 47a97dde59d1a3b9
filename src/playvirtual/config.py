"""The configuration of a run: frozen, typed, validated. Values live in hyperparameters.py, meaning and limits here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from playvirtual.errors import InputError, unknown

METHODS = (
    "rl",
    "spr",
    "spr-bdm",
    "playvirtual",
    "playvirtual-nd",
    "playvirtual-latent",
    "playvirtual-every-step",
    "playvirtual-no-warmup",
    "playvirtual-perturbed",
    "playvirtual-real-cycle",
)
PRESETS = ("paper", "reference")
MOST_BETA = 0.999999  # Adam divides by 1 − β^t
MOST = 2**31 - 1  # of every whole number: more does not fit where 32 bits count


def option(help: str, *, low: float | None = None, high: float | None = None, default: Any = MISSING) -> Any:
    """A field with a sentence for `--help` and the closed interval its value must lie in.

    Only one that earlier versions did not write has a default: what their runs mean by its absence.
    """
    return field(metadata={"help": help, "low": low, "high": high}, default=default)


@dataclass(frozen=True)
class EnvironmentConfig:
    """How the world is shown to the agent."""

    frame_stack: int = option("frames in one observation", low=1)
    stack_fill: Literal["zeros", "repeat"] = option("what stands before an episode's first frame: zeros, or that frame")
    image_size: int = option("side of a stored frame in pixels", low=1)
    grayscale: bool = option("one gray channel instead of three colours, where the task has a choice")
    action_repeat: int = option("environment frames per action", low=1)
    max_episode_frames: int = option("an episode ends here at the latest; 0: the task's own limit", low=0)
    life_loss_is_terminal: bool = option("in training, a lost life ends the return (Atari)")
    reward_clip: float = option("training rewards are clipped to ± this; 0: not clipped", low=0)


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
    virtual_actions: Literal["uniform", "perturbed"] = option("drawn anew, or the recorded ones with noise")
    sigma: float = option(
        "noise of perturbed actions: Gaussian std, or for discrete actions the chance of a new one", low=0
    )
    cycle_updates_dm: bool = option("the cycle loss trains the forward model, not only encoder and backward model")
    real_cycle: bool = option("the cycle loss is also taken along the recorded actions")


@dataclass(frozen=True)
class RainbowConfig:
    """The discrete agent: Rainbow's head on an encoder shared with the auxiliary objective."""

    channels: tuple[int, ...] = option("channels of the encoder's convolutions")
    filters: tuple[int, ...] = option("their filter sizes")
    strides: tuple[int, ...] = option("their strides")
    latent: int = option("size of a vector latent; 0: keep the feature map and use convolutional dynamics", low=0)
    dynamics_hidden: int = option("hidden units of fully connected dynamics models", low=1)
    hidden: int = option("hidden units of the value and the advantage stream", low=1)
    atoms: int = option("bins of the return distribution", low=2)
    v_max: float = option("the distribution's support is [−v_max, v_max]", low=1e-6)
    noisy_sigma: float = option("initial σ₀ of the noisy layers", low=0)
    discount: float = option("γ", low=0, high=1)
    n_step: int = option("rewards summed before bootstrapping", low=1)
    batch_size: int = option("sequences per update", low=1)
    updates_per_step: float = option("updates per agent step; 0.25: one every four steps", low=0)
    learning_rate: float = option("Adam's learning rate", low=0)
    adam_beta1: float = option("Adam's β₁", low=0, high=MOST_BETA)
    adam_beta2: float = option("Adam's β₂", low=0, high=MOST_BETA)
    adam_eps: float = option("Adam's ε", low=0)
    max_grad_norm: float = option("gradient norm limit, for encoder and head, DM, and BDM separately", low=0)
    target_period: int = option("updates between target network updates", low=1)
    target_tau: float = option("what the target keeps of itself; 0: it becomes a copy", low=0, high=1)
    target_moment: Literal["after-step", "before-step"] = option(
        "the target follows after the optimiser's step, or before it and so is one update old"
    )
    shift_pad: int = option("augmentation: random shift by up to this many pixels", low=0)
    intensity_scale: float = option("augmentation: scale of the random intensity", low=0)
    priority_exponent: float = option("α of prioritised replay", low=0)
    priority_beta_start: float = option("β of the importance weights at the first step", low=0, high=1)
    priority_beta_end: float = option("β after priority_beta_steps", low=0, high=1)
    priority_beta_steps: int = option("steps over which β grows", low=1)


@dataclass(frozen=True)
class SacConfig:
    """The continuous agent: SAC on an encoder shared with the auxiliary objective."""

    channels: tuple[int, ...] = option("channels of the encoder's convolutions")
    filters: tuple[int, ...] = option("their filter sizes")
    strides: tuple[int, ...] = option("their strides")
    latent: int = option("size of the latent state", low=1)
    encoder_tanh: bool = option("the latent state is squashed by a tanh after its LayerNorm")
    hidden: int = option("hidden units of each of the actor's and the critics' two layers", low=1)
    dynamics_hidden: int = option("hidden units of the dynamics models", low=1)
    projection_hidden: int = option("hidden units of the projection and the prediction head", low=1)
    log_std_min: float = option("smallest logarithm of the policy's standard deviation")
    log_std_max: float = option("largest logarithm of the policy's standard deviation")
    discount: float = option("γ", low=0, high=1)
    batch_size: int = option("transitions per update of critic and actor", low=1)
    auxiliary_batch_size: int = option("sequences per update of the auxiliary objective", low=1)
    updates_per_step: float = option("updates per agent step; 0.25: one every four steps", low=0)
    learning_rate: float = option("Adam's learning rate for encoder, critic and actor", low=0)
    auxiliary_learning_rate: float = option("the same for encoder, dynamics models and heads", low=0)
    adam_beta1: float = option("Adam's β₁", low=0, high=MOST_BETA)
    adam_beta2: float = option("Adam's β₂", low=0, high=MOST_BETA)
    adam_eps: float = option("Adam's ε", low=0)
    separate_encoder_optimizer: bool = option(
        "in the auxiliary update the encoder is clipped and stepped by an Adam of its own and then again with the rest"
    )
    max_grad_norm: float = option("gradient norm limit of the auxiliary update", low=0)
    initial_temperature: float = option("α of the entropy bonus at the start", low=1e-8)
    temperature_learning_rate: float = option("Adam's learning rate for log α", low=0)
    temperature_beta1: float = option("Adam's β₁ for log α", low=0, high=MOST_BETA)
    actor_period: int = option("critic updates per update of actor and temperature", low=1)
    critic_target_period: int = option("updates between updates of the target critic", low=1)
    q_tau: float = option("what the target critic's Q takes over of the online one each time", low=0, high=1)
    encoder_tau: float = option("what the target critic's encoder takes over each time", low=0, high=1)
    momentum_period: int = option("updates between updates of the momentum encoder and projection", low=1)
    momentum_tau: float = option("what the momentum encoder and projection take over each time", low=0, high=1)
    target_projection: Literal["copy", "independent"] = option(
        "the momentum projection starts as a copy of the online one, or with weights of its own"
    )
    crop_size: int = option("side of what the networks see: random crops in updates, the centre when acting", low=1)
    intensity_scale: float = option("augmentation: scale of the random intensity (auxiliary objective)", low=0)


@dataclass(frozen=True)
class ReplayConfig:
    """How much experience is kept."""

    capacity: int = option("frames kept", low=2)
    min_size: int = option("agent steps of random play before the first update", low=1)


@dataclass(frozen=True)
class EvaluationConfig:
    """How a trained agent is scored."""

    episodes: int = option("episodes of an evaluation", low=1)
    lanes: int = option("environments that play them side by side", low=1)
    every: int = option("steps between evaluations; 0: at the end only", low=0)
    epsilon: float = option("chance of a random action in evaluation (discrete actions)", low=0, high=1)


AgentConfig = RainbowConfig | SacConfig


@dataclass(frozen=True)
class Config:
    """Everything that decides a run."""

    task: str = option("what to learn; see `playvirtual list tasks`")
    method: str = option("a row of the paper's tables; see `playvirtual list methods`")
    preset: str = option("paper: the text's values; reference: the released code's where the two disagree")
    seed: int = option("decides everything that is random", low=0, high=MOST)
    steps: int = option("length of the run, in step_unit", low=1)
    step_unit: Literal["agent", "environment"] = option(
        "what steps, schedules and evaluation intervals count: agent steps, or environment frames"
    )
    device: str = option("auto, cpu, cuda or cuda:N")
    threads: int = option("CPU threads of the networks; 0: PyTorch's choice when the run begins", low=0, high=1024)
    capture: Literal["off", "graph", "compile"] = option(
        "on a GPU, replay each update as one CUDA graph, compiled or not; the CPU always runs it step by step"
    )
    precision: Literal["fp32", "tf32", "bf16"] = option(
        "arithmetic of the updates on a GPU; one without tensor cores for it, as the CPU, computes in fp32"
    )
    log_every: int = option("agent steps between two lines of metrics", low=1)
    checkpoint_every: int = option(
        "agent steps between two checkpoints; 0: only at evaluations, at the end, and when interrupted", low=0
    )
    video_at_evaluation: bool = option("film the first lane of every evaluation into videos/; changes no number")
    environment: EnvironmentConfig = option("how the world is shown")
    objective: ObjectiveConfig = option("the auxiliary objective")
    agent: AgentConfig = option("the learner")
    replay: ReplayConfig = option("what is kept")
    evaluation: EvaluationConfig = option("how it is scored")
    encoder_from: str = option(
        "a run folder whose encoder is taken over and kept as it is, for RL alone; empty: none", default=""
    )

    @property
    def unit(self) -> int:
        """What one agent step adds to what `steps`, schedules and evaluation intervals count."""
        return self.environment.action_repeat if self.step_unit == "environment" else 1

    @property
    def first_update(self) -> float:
        """The agent steps taken when the first update is made; infinite without updates."""
        rate = self.agent.updates_per_step
        return self.replay.min_size - 1 + (math.ceil(1 / rate - 1e-9) if rate else math.inf)

    @property
    def agent_steps(self) -> int:
        """The whole agent steps that reach `steps`."""
        return -(-self.steps // self.unit)


def leaves(config: Any) -> Iterator[tuple[Field[Any], Any, Any]]:
    """(field, its type, its value) of every ordinary field, groups opened, in order."""
    hints = get_type_hints(type(config))
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from leaves(value)
        else:
            yield f, hints[f.name], value


def with_values(config: Any, values: Mapping[str, Any]) -> Any:
    """A copy with the named fields replaced wherever in the groups they are, coerced to their types, checked."""
    known = {f.name for f, _, _ in leaves(config)}
    for name in values:
        if name not in known:
            raise other_agents_option(name, config) or unknown("option", name, known)
    return validated(_replace(config, values))


def other_agents_option(name: str, config: Config, shown: str | None = None) -> InputError | None:
    """The error for a field that only the agent of the other kind of actions has, None if it is no such field."""
    rainbow, sac = ({f.name for f in fields(agent)} for agent in (RainbowConfig, SacConfig))
    discrete = isinstance(config.agent, RainbowConfig)
    if name not in (sac - rainbow if discrete else rainbow - sac):
        return None
    own, other = ("discrete", "continuous") if discrete else ("continuous", "discrete")
    return InputError(
        f"option: {(shown or name)!r} is not one of {config.task}, which has {own} actions; "
        f"allowed: on tasks with {other} ones"
    )


def _replace(config: Any, values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for f in fields(config):
        current = getattr(config, f.name)
        if is_dataclass(current):
            changes[f.name] = _replace(current, values)
        elif f.name in values:
            changes[f.name] = coerce(f.name, hints[f.name], values[f.name])
    return replace(config, **changes)


def coerce(name: str, kind: Any, value: Any) -> Any:
    """Turns text (from a command line) or JSON into the field's type; says what is allowed where it cannot."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(name, str(value), get_args(kind))
        return value
    if get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return tuple(coerce(name, get_args(kind)[0], item) for item in items)
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in words:
            raise InputError(f"{name}: {value!r} is not allowed; allowed: true, false")
        return words[str(value).lower()]
    if kind is str:
        return str(value)
    try:
        # A float would be shown as another number than the one that was given, if that is long.
        number = int(value) if kind is int and re.fullmatch(r"[+-]?\d+", str(value)) else float(value)
        if isinstance(value, bool) or (kind is int and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name}: {value!r} is not allowed; allowed: {'a whole' if kind is int else 'a'} number"
        ) from None
    return int(number) if kind is int else number


def validated(config: Config) -> Config:
    """The same configuration, or an InputError that names the first field out of its limits."""
    for f, _, value in leaves(config):
        low, high = f.metadata.get("low"), f.metadata.get("high")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool | str):
                continue
            lowest = 1 if isinstance(value, tuple) else low
            if not math.isfinite(number):
                raise InputError(f"{f.name}: {number} is not allowed; allowed: {_finite(lowest, high)}")
            if lowest is not None and number < lowest:
                raise InputError(f"{f.name}: {number} is not allowed; allowed: {_interval(lowest, high)}")
            highest = MOST if high is None and isinstance(number, int) else high
            if highest is not None and number > highest:
                raise InputError(f"{f.name}: {number} is not allowed; allowed: {_interval(lowest, highest)}")
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    if config.preset not in PRESETS:
        raise unknown("preset", config.preset, PRESETS)
    check_device(config.device)
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
    agent = config.agent
    if not len(agent.channels) == len(agent.filters) == len(agent.strides):
        raise InputError(
            f"channels, filters, strides: {agent.channels}, {agent.filters}, {agent.strides} differ in length; "
            "allowed: one entry per convolution in each"
        )
    if isinstance(agent, SacConfig):
        _validate_sac(agent, config.environment)
    _validate_replay(config)
    return config


def check_device(name: str) -> None:
    """Raises unless that is how a device is named, there or not."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise InputError(f"device: {name!r} is not allowed; allowed: auto, cpu, cuda, cuda:N")


def _validate_replay(config: Config) -> None:
    """There is something to draw at the first update, and room for it later."""
    span = max(config.objective.K, config.agent.n_step if isinstance(config.agent, RainbowConfig) else 1)
    if config.replay.min_size <= span:
        raise InputError(
            f"min_size: {config.replay.min_size} is not allowed; allowed: more than {span}, "
            "the steps that a batch looks ahead"
        )
    room = span + config.environment.frame_stack
    if config.replay.capacity < room:
        raise InputError(
            f"capacity: {config.replay.capacity} is not allowed; allowed: {room} or more, for the {span} steps that a "
            f"batch looks ahead and the {config.environment.frame_stack} frames of an observation"
        )


def _validate_sac(agent: SacConfig, environment: EnvironmentConfig) -> None:
    if agent.crop_size > environment.image_size:
        raise InputError(
            f"crop_size: {agent.crop_size} is not allowed; allowed: 1 to image_size, {environment.image_size}"
        )
    if agent.log_std_min > agent.log_std_max:
        raise InputError(
            f"log_std_min: {agent.log_std_min} is not allowed; allowed: log_std_max, {agent.log_std_max}, or less"
        )


def _interval(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{low:.10g} to {high:.10g}"
    return f"{low:g} or more" if low is not None else f"{high:g} or less" if high is not None else "a finite number"


def _finite(low: float | None, high: float | None) -> str:
    """What is allowed in place of an infinite number, or of none at all."""
    return f"a finite number, {low:g} or more" if low is not None and high is None else _interval(low, high)


def copies(M: str, actions: int) -> int:
    """The number of virtual trajectories: '12' is 12, '2A' is twice the number of actions (or action dimensions)."""
    return round(float(M[:-1]) * actions) if M.endswith("A") else int(M)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain JSON values; `from_dict` is the inverse."""
    return {**asdict(config), "agent_kind": _KINDS[type(config.agent)]}


def from_dict(data: Mapping[str, Any]) -> Config:
    """The configuration that `to_dict` wrote; the `versions` that a run folder adds to it are passed over."""
    kinds = {kind: cls for cls, kind in _KINDS.items()}
    agent = kinds[data["agent_kind"]]
    own = {name: value for name, value in data.items() if name not in ("agent_kind", "versions")}
    return validated(_from_dict(Config, own, agent))


def differences(a: Config, b: Config) -> list[str]:
    """The fields in which two configurations differ, as `name: value in a → value in b`.

    Where it is computed is left out: a run may go on on another card, or without any.
    """
    if type(a.agent) is not type(b.agent):
        return [f"task: {a.task!r} → {b.task!r}"]
    pairs = zip(leaves(a), leaves(b), strict=True)
    return [f"{f.name}: {x!r} → {y!r}" for (f, _, x), (_, _, y) in pairs if x != y and f.name != "device"]


def _from_dict(cls: Any, data: Mapping[str, Any], agent: Any) -> Any:
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)}
    for name in data:
        if name not in known:
            raise unknown("config.json: field", name, known)
    values: dict[str, Any] = {}
    for f in fields(cls):
        kind = agent if f.name == "agent" else hints[f.name]
        if f.name not in data and f.default is not MISSING:
            continue
        if f.name not in data:
            raise InputError(f"config.json: the field {f.name!r} is missing")
        nested = is_dataclass(kind)
        values[f.name] = _from_dict(kind, data[f.name], agent) if nested else coerce(f.name, kind, data[f.name])
    return cls(**values)


_KINDS: dict[type, str] = {RainbowConfig: "rainbow", SacConfig: "sac"}
