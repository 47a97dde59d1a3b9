"""Tasks of the DeepMind Control Suite, seen by camera 0."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs.env import ActionSpace, Frames, to_native
from playvirtual.envs.families import gl
from playvirtual.envs.image import channels_first, enlarge, to_gray
from playvirtual.envs.registry import EnvFamily
from playvirtual.envs.vector import EnvStep
from playvirtual.errors import InputError, install_hint

# A copy of the suite's list, which a test compares with the suite: importing dm_control fixes the OpenGL back end, and
# listing names must not do that.
TASKS = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
CAMERA = 0  # every domain of the suite has one
TIME_LIMIT = 1_000  # frames of an episode in every domain but LQR, whose episodes may never end
UNBOUNDED = 1e9  # LQR's forces are limited to ±1e10, which means not at all
RENDER_SIZE = 300  # pixels, about


def task_names() -> list[str]:
    """Every task of the suite as `domain-task`."""
    return [f"{domain}-{task}" for domain, tasks in TASKS.items() for task in tasks]


class DMControl:
    """One task of the suite: actions in [−1, 1]ᴬ are scaled to the task's bounds, unlimited forces passed unscaled.

    A time limit truncates an episode; the few tasks that can fail before it (LQR) are terminated then.
    """

    def __init__(self, name: str, image_size: int, *, grayscale: bool) -> None:
        require_package()
        gl.choose()
        logging.getLogger("absl").setLevel(logging.ERROR)  # deprecated attributes in the suite's own models
        from dm_control import suite
        from dm_control.mujoco import Camera

        domain, task = name.split("-")
        # The random state is reseeded at every reset; here it makes LQR's springs the same in every process.
        self._env = suite.load(domain, task, task_kwargs={"random": np.random.RandomState(0)})
        # The suite would compute positions and velocities in every frame, and an agent that sees pixels reads neither.
        self._env.task.get_observation = lambda physics: {}
        view = self._env.physics.model.vis.global_
        # An off-screen buffer of the frame's size renders the same bytes faster than the default 640×480.
        view.offwidth = view.offheight = image_size
        self._camera = Camera(self._env.physics, image_size, image_size, camera_id=CAMERA)

        bounds = self._env.action_spec()
        limited = bounds.maximum < UNBOUNDED
        low, high = np.where(limited, bounds.minimum, -1.0), np.where(limited, bounds.maximum, 1.0)
        self.native_action_space = spaces.Box(low, high, dtype=np.float64)
        self.action_space: ActionSpace = spaces.Box(-1.0, 1.0, bounds.shape, np.float32)
        self.frame_shape = (1 if grayscale else 3, image_size, image_size)
        self.time_limit = 0 if domain == "lqr" else TIME_LIMIT
        self._grayscale = grayscale

    def reset(self, seed: int) -> None:
        self._env.task.random.seed(seed)
        self._env.reset()

    def step(self, action: npt.NDArray[np.generic]) -> EnvStep:
        now = self._env.step(to_native(action, self.native_action_space))
        done = bool(now.last())
        return EnvStep(float(now.reward), done and now.discount == 0, done)

    def frame(self) -> Frames:
        image = self._camera.render()
        return channels_first(to_gray(image) if self._grayscale else image)

    def render(self) -> Frames:
        """The agent's view, enlarged by a whole factor."""
        image = self._camera.render()
        return enlarge(image, max(1, RENDER_SIZE // len(image)))

    def close(self) -> None:
        self._env.close()


def require_package() -> None:
    """Raises an `InputError` unless dm_control is installed."""
    if find_spec("dm_control") is None:
        raise InputError(f"dmc: DMControl is not installed; {install_hint('dmc')}")


FAMILY = EnvFamily(
    tasks=task_names(),
    make=lambda name, config: DMControl(name, config.image_size, grayscale=config.grayscale),
    actions="continuous",
    check_installed=require_package,
    envs_per_worker=1,  # a step is slow, and beside the rendering it is mostly Python
    # The back end is tried in this process, where a machine that cannot render is one line, and not in each worker.
    before_workers=gl.choose,
    set_up_worker=lambda backend: gl.accept(*backend),
)
