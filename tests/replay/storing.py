"""A whole transition at once, for tests; a run stores its frame before it is known what will be done in it."""

import numpy as np
import numpy.typing as npt

from playvirtual.replay import Replay


def store(
    replay: Replay,
    frame: npt.NDArray[np.uint8],
    action: npt.ArrayLike,
    reward: float,
    *,
    terminal: bool,
    last: npt.NDArray[np.uint8] | None = None,
) -> int:
    """Returns the ring position; `last` is the frame that a time limit left, if one ended the episode here."""
    position = replay.begin(frame)
    replay.complete(action, reward, terminal=terminal)
    if last is not None:
        replay.close(last)
    return position
