"""Tasks of the DeepMind Control Suite, seen by camera 0."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from playvirtual.envs import gl
from playvirtual.envs.image import channels_first, enlarge, to_gray
from playvirtual.envs.lanes import Outcome
from playvirtual.envs.protocol import ActionSpace, Frames
from playvirtual.errors import InputError

# Written down rather than asked for: importing dm_control settles the OpenGL back end, which a list of names
# must not do. A test compares it with the suite.
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
UNBOUNDED = 1e9  # LQR's forces are limited to ±1e10, which means not at all
PICTURE_SIZE = 300  # pixels, about


def task_names() -> list[str]:
    """Every task of the suite as `domain-task`."""
    return [f"{domain}-{task}" for domain, tasks in TASKS.items() for task in tasks]


class Control:
    """One task: actions in [−1, 1]ᴬ are stretched to the task's bounds, unlimited forces taken as they are.

    A time limit is over but not terminal; the few tasks that can fail before it (LQR) are terminal then.
    """

    def __init__(self, name: str, image_size: int, *, grayscale: bool) -> None:
        require_package()
        gl.choose()
        logging.getLogger("absl").setLevel(logging.ERROR)  # deprecated attributes in the suite's own models
        from dm_control import suite
        from dm_control.mujoco import Camera

        domain, task = name.split("-")
        # The random state is reseeded at every reset; here it makes LQR's springs the same in every process.
        self._world = suite.load(domain, task, task_kwargs={"random": np.random.RandomState(0)})
        # Positions and velocities that nobody reads would be worked out in every frame.
        self._world.task.get_observation = lambda physics: {}
        view = self._world.physics.model.vis.global_
        # An off-screen buffer no larger than the frame gives the same bytes sooner than the usual 640×480.
        view.offwidth = view.offheight = image_size
        self._camera = Camera(self._world.physics, image_size, image_size, camera_id=CAMERA)

        bounds = self._world.action_spec()
        limited = bounds.maximum < UNBOUNDED
        self._low = np.where(limited, bounds.minimum, -1.0)
        self._span = np.where(limited, bounds.maximum - bounds.minimum, 2.0)
        self.action_space: ActionSpace = spaces.Box(-1.0, 1.0, bounds.shape, np.float32)
        self.frame_shape = (1 if grayscale else 3, image_size, image_size)
        self._grayscale = grayscale

    def reset(self, seed: int) -> None:
        self._world.task.random.seed(seed)
        self._world.reset()

    def advance(self, action: npt.NDArray[np.generic]) -> Outcome:
        unit = (np.clip(action.astype(np.float64), -1, 1) + 1) / 2
        now = self._world.step(self._low + unit * self._span)
        over = bool(now.last())
        return Outcome(float(now.reward), over and now.discount == 0, over)

    def frame(self) -> Frames:
        image = self._camera.render()
        return channels_first(to_gray(image) if self._grayscale else image)

    def picture(self) -> Frames:
        """The agent's view in whole pixels."""
        image = self._camera.render()
        return enlarge(image, max(1, PICTURE_SIZE // len(image)))

    def close(self) -> None:
        self._world.close()


def require_package() -> None:
    """Raises an `InputError` unless dm_control is installed."""
    if find_spec("dm_control") is None:
        raise InputError("dmc: DMControl is not installed; in a clone: pip install -e '.[dmc]'")
