"""Settings that fit the task: networks, images, K, M and paces by what an environment shows, the budget and the device.

Every number here is this project's own choice; the paper's settings, which `paper` keeps, are in hyperparameters.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from playvirtual.config.hyperparameters import RAINBOW
from playvirtual.config.schema import SIZES, Config
from playvirtual.envs.inspection import EnvInfo
from playvirtual.envs.registry import ActionKind
from playvirtual.errors import InputError, shown, unknown
from playvirtual.options import coerce

SMALL_SIDE = 20  # pixels: images up to this side are seen as they are, by one convolution
DISCOUNT = 0.95  # of small and medium sizes: they look about 20 steps ahead
FRAMES = 2  # in a stack, for discrete actions of small and medium sizes: they show motion, and cost less than four
BETTER = 2.0  # times what random play earns, which values have room for
SIDES = {"small": 32, "medium": 48}  # to which larger images are reduced
MOST_VIRTUAL = {"small": 16, "medium": 16, "paper": 36}  # trajectories per sample; 2A of Atari's 18 actions is 36
REPLAY_BYTES = 2**31  # that the frames of the replay buffer take at most
NETWORKS = (
    "channels",
    "kernel_sizes",
    "strides",
    "latent",
    "hidden",
    "dynamics_hidden",
    "projection_hidden",
    "crop_size",
)
STEPS = {"small": 50_000, "medium": 50_000, "paper": 100_000}


@dataclass(frozen=True)
class Fit:
    """What settings are fitted to: what an environment shows, and the steps of the run."""

    shape: tuple[int, int, int]  # (C, H, W) of the environment's own images
    num_actions: int
    steps: int
    numbers: int = 0  # beside an image, each a plane of a frame
    largest_reward: float = 0.0  # of random play, in size, as all of these
    mean_reward: float = 0.0  # per step
    background: float = 0.0  # the shade of most pixels, from 0 to 1

    def __str__(self) -> str:
        """As a run's config.json records it, so that its settings can be found again without the environment."""
        c, h, w = self.shape
        numbers = f", {self.numbers} numbers" if self.numbers else ""
        rewards = f", rewards to {self.largest_reward:g}, {self.mean_reward:g} a step" if self.largest_reward else ""
        background = f", background {self.background:g}" if self.background else ""
        return f"{h}x{w}x{c} images{numbers}, {self.num_actions} actions, {self.steps} steps{rewards}{background}"

    @classmethod
    def parse(cls, text: str) -> Fit:
        """The inverse of `str`."""
        seen = r"(\d{1,5})x(\d{1,5})x(\d{1,4}) images(?:, (\d{1,4}) numbers)?, (\d{1,7}) actions, (\d{1,10}) steps"
        paid = r"(?:, rewards to (\d[\d.e+-]{0,9}), (\d[\d.e+-]{0,9}) a step)?"
        shaded = r"(?:, background (1|0\.\d{1,2}))?"
        found = re.fullmatch(seen + paid + shaded, text)
        *sizes, largest, mean, background = found.groups("0") if found is not None else ["0"] * 9
        h, w, c, numbers, actions, steps = map(int, sizes)
        if 0 in (h, w, c, actions, steps):
            raise InputError(
                f"fitted_to: {shown(text)} is not allowed; allowed: text such as '{cls((3, 12, 12), 4, 50_000)}'"
            )
        rewards = _as_reward(largest), _as_reward(mean)
        return cls((c, h, w), actions, steps, numbers, *rewards, float(background))

    @classmethod
    def of(cls, info: EnvInfo, steps: int) -> Fit:
        """The fit to an environment and a number of steps; rewards keep three digits, the background two places."""
        sizes = [abs(reward) for reward in info.rewards if math.isfinite(reward)] or [0.0]
        largest, mean = (float(f"{size:.3g}") for size in (max(sizes), sum(sizes) / len(sizes)))
        return cls(info.shape, info.num_actions, steps, info.numbers, largest, mean, round(info.background, 2))

    @property
    def side(self) -> int:
        """The longer side of the images, in pixels."""
        return max(self.shape[1:])


def _as_reward(text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(reward := float(text)):
            return reward
    raise InputError(f"fitted_to: the reward {shown(text)} is not allowed; allowed: a number such as 0.5")


def check_size(size: str) -> None:
    """Raises an InputError unless that is the name of a size."""
    if size not in SIZES:
        raise unknown("size", size, SIZES)


def choose_size(shape: tuple[int, int, int], *, on_gpu: bool) -> str:
    """The size of networks and images for an environment: small for small images, else by what the device can do."""
    if max(shape[1:]) <= SMALL_SIDE:
        return "small"
    return "paper" if on_gpu else "medium"


def fitted_changes(size: str, kind: ActionKind, fit: Fit, config: Config) -> dict[str, Any]:
    """Option → value for an environment of one's own; `config` has the benchmark's settings and the method's agent."""
    schedules = {**_schedules(fit.steps), **config.agent.fitted_to_steps(fit.steps)}
    changes = {**schedules, "M": _num_virtual(size, kind, fit.num_actions)}
    if kind == "discrete":
        changes["discount"] = RAINBOW.discount if size == "paper" else DISCOUNT
        changes["background"] = fit.background
        if size != "paper" and not config.agent.epsilon_greedy:
            changes["random_steps"] = fit.steps * 3 // 4
    if fit.numbers:
        changes["intensity_scale"] = 0.0  # it would blur them
    changes = _without_own_numbers(changes, ["priority_beta_steps"], config)
    if size != "paper":
        image = fit.side if fit.side <= SMALL_SIDE else min(fit.side, SIDES[size])
        changes |= sized_changes(size, kind, image, config)
        frame = (fit.shape[0] + fit.numbers) * image**2
        changes["capacity"] = max(1_000, min(100_000, REPLAY_BYTES // frame))
        if kind == "discrete":
            changes["frame_stack"] = FRAMES
    if kind == "discrete" and "v_max" not in config.agent.own_numbers(()):
        discount = changes.get("discount", getattr(config.agent, "discount", DISCOUNT))
        changes["v_max"] = value_range(fit, config.environment.reward_clip, discount)
    return changes


def value_range(fit: Fit, clip: float, discount: float) -> float:
    """A v_max that returns do not leave and do not get lost in, by the rewards of random play.

    A trained agent is taken to earn BETTER times what random play earns, over the steps that the discount looks ahead;
    it cannot earn more than the largest reward in each of them, and one or two rewards must have room.
    """
    horizon = 1 / (1 - discount)
    most = clip or math.inf
    largest = min(fit.largest_reward or 1.0, most)
    expected = BETTER * min(fit.mean_reward, most) * horizon
    return float(f"{max(2 * largest, min(expected, largest * horizon)):.2g}")


def sized_changes(size: str, kind: ActionKind, image: int, config: Config) -> dict[str, Any]:
    """Option → value of a smaller size than the paper's, for images of that side."""
    own = config.agent.fitted_to_images(image)
    changes: dict[str, Any] = {"image_size": image, "grayscale": False, "precision": "tf32", "threads": 1}
    if kind == "discrete":
        changes |= _convolutions(size, image, image)
        changes |= {"latent": 128, "dynamics_hidden": 128, "hidden": 128, "shift_pad": 0 if image <= SMALL_SIDE else 2}
        changes |= {"K": 3, "n_step": 3, "noisy_sigma": 0.1}
        changes |= {"learning_rate": 5e-4, "adam_eps": 1e-8, "updates_per_step": 2.0}
    else:
        crop = own.get("crop_size", image if image <= SMALL_SIDE else image - image // 12)
        changes |= _convolutions(size, image, crop)
        changes |= {"hidden": 256, "dynamics_hidden": 128, "projection_hidden": 64, "K": 4, "crop_size": crop}
        changes |= {"batch_size": 64, "auxiliary_batch_size": 32, "q_tau": 0.02, "updates_per_step": 0.5}
        changes |= {"temperature_learning_rate": 1e-3}
    return {**_without_own_numbers(changes, NETWORKS, config), **own}


def _convolutions(size: str, image: int, crop: int) -> dict[str, Any]:
    """The encoder's convolutions for images with a side of `image` pixels, of which they see crops of `crop`."""
    if image <= SMALL_SIDE:
        layers: tuple[tuple[int, ...], ...] = ((32,), (3,), (1,)) if crop > 3 else ((32,), (1,), (1,))
    elif size == "small":
        layers = ((16, 32), (4, 3), (2, 2))
    else:
        layers = ((16, 32, 32), (8, 4, 3), (4, 2, 1)) if crop >= 36 else ((16, 32), (4, 3), (2, 2))
    return dict(zip(("channels", "kernel_sizes", "strides"), layers, strict=True))


def _num_virtual(size: str, kind: ActionKind, actions: int) -> str:
    """M: as many trajectories as the size affords, in multiples of the actions where these are discrete."""
    if kind == "continuous":
        return {"small": "4", "medium": "6", "paper": "10"}[size]
    factor = 2 if size == "paper" else 1
    return f"{factor}A" if factor * actions <= MOST_VIRTUAL[size] else str(MOST_VIRTUAL[size])


def _schedules(steps: int) -> dict[str, Any]:
    """Random play, warm-ups and intervals in the proportions of the paper's 100,000 steps, for shorter runs too."""
    return {
        "learning_starts": max(20, min(100, steps // 2), min(2_000, steps // 50)),
        "i_end": steps // 2,
        "priority_beta_steps": steps,
        "eval_every": max(1, steps // 10),
        "log_every": max(1, min(1_000, steps // 100)),
        "checkpoint_every": max(1, min(5_000, steps // 20)),
    }


def _without_own_numbers(changes: Mapping[str, Any], networks: Collection[str], config: Config) -> dict[str, Any]:
    """The changes but for numbers that the method's agent has of its own."""
    own = config.agent.own_numbers(networks)
    return {name: value for name, value in changes.items() if name not in own}


def reasons(config: Config, *, on_gpu: bool) -> list[str]:
    """Why the settings of a fitted run are what they are, a line for each; options that were given keep their word."""
    if not config.fitted_to:
        return []
    fit, agent = Fit.parse(config.fitted_to), config.agent
    c, h, w = fit.shape
    chosen = choose_size(fit.shape, on_gpu=on_gpu)
    images = f"images are {h}×{w}"
    if config.size != chosen:
        why = f"as asked for; {chosen} would fit, as {images}"
    elif config.size == "small":
        why = images
    else:
        why = f"{images} and this is a {'GPU' if on_gpu else 'CPU'}"
    seen = config.environment
    colors = "gray" if seen.grayscale or c == 1 else "in color"
    if fit.numbers:
        colors += f" with {fit.numbers} planes for the numbers beside the image"
    lines = [f"size {config.size}: {why}"]
    if background := getattr(agent, "background", 0.0):
        colors += f" less their background's shade, {background:g}"
    motion = " to see motion" if seen.frame_stack > 1 else ""
    lines.append(
        f"frames {seen.image_size}×{seen.image_size} {colors}, stacks of {seen.frame_stack}{motion} (--image-size, "
        "--grayscale, --background, --frame-stack)"
    )
    lines.append(
        f"K = {config.objective.K}, M = {config.objective.M}: {fit.num_actions} actions; batches of "
        f"{agent.batch_size}, {agent.updates_per_step:g} updates per step (--K, --M, --batch-size, --updates-per-step)"
    )
    fewer = f", ever fewer random actions in the next {config.replay.random_steps:,}"
    lines.append(
        f"{config.steps:,} steps, the first {config.replay.learning_starts:,} at random"
        f"{fewer if config.replay.random_steps else ''}, replay of {config.replay.capacity:,} frames (--steps, "
        "--learning-starts, --random-steps, --capacity)"
    )
    earned = f"rewards of up to {fit.largest_reward:g}, {fit.mean_reward:g} per step"
    return [*lines, *agent.fit_reasons(config, earned if fit.largest_reward else "nothing")]


def size_steps_device(given: Mapping[str, Any]) -> tuple[str, int | None, str]:
    """(size, steps, device) among options that are not checked yet; "" and None where they are not given."""
    size = str(given.get("size") or "")
    if size:
        check_size(size)
    steps = None if given.get("steps") is None else int(coerce("steps", int, given["steps"]))
    return size, steps, str(given.get("device", "auto"))
