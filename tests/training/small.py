"""One small training for each of the two agents."""

from typing import Any

SMALL: dict[str, Any] = {"device": "cpu", "steps": 200, "learning_starts": 40, "hidden": 16, "K": 2, "eval_episodes": 2}
CONTINUOUS = {
    **SMALL,
    "channels": "8",
    "kernel_sizes": "3",
    "strides": "2",
    "M": 2,
    "batch_size": 8,
    "auxiliary_batch_size": 4,
}
TASKS = [("toy/catch", SMALL), ("toy/reach", CONTINUOUS)]
