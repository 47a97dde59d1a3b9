"""What videos draw: a rendered frame above a panel with return, actions and values, and many of them as a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Frame = npt.NDArray[np.uint8]  # (H, W, 3)

LEAST_WIDTH = 240  # of a panel, in pixels
LINE = 15  # pixels of a line of text or a row
MARGIN = 6
MOST_ROWS = 12  # of actions (those of the highest values) or dimensions
ROWS_PER_COLUMN = 6
NAME_SHARE, VALUE_SHARE = 0.46, 0.25  # of a column's width
GAP = 4  # pixels between the tiles of a grid
BACKGROUND, INK, SOFT = (18, 20, 24), (232, 234, 237), (140, 146, 154)
BAR, CHOSEN, TRACK = (86, 180, 233), (240, 228, 66), (44, 48, 55)


class Row(NamedTuple):
    """One action, or one dimension of an action: its name, its value as text, and its bar from `start` to `end`."""

    name: str
    value: str
    start: float  # 0 … 1
    end: float
    chosen: bool = False


def value_rows(names: Sequence[str], values: npt.NDArray[np.generic], chosen: int) -> list[Row]:
    """A row for every discrete action; the lowest value has no bar, the highest a full one."""
    numbers = np.asarray(values, dtype=np.float64)
    spread = max(float(np.ptp(numbers)), 1e-9)
    shares = (numbers - numbers.min()) / spread
    rows = [Row(names[i], _number(numbers[i]), 0.0, float(shares[i]), i == chosen) for i in range(len(numbers))]
    kept = sorted(sorted(range(len(rows)), key=lambda i: (i != chosen, -numbers[i]))[:MOST_ROWS])
    return [rows[i] for i in kept]


def _number(value: float) -> str:
    """A value in few characters: 0.02, -1.30, 250."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.3g}"


def choice_rows(names: Sequence[str], chosen: int) -> list[Row]:
    """The chosen action of an agent that has no values."""
    return [Row(names[chosen], "", 0.0, 1.0, True)]


def vector_rows(action: npt.NDArray[np.generic]) -> list[Row]:
    """A row for every dimension of a continuous action in [−1, 1], with a bar from the middle."""
    numbers = np.atleast_1d(np.asarray(action, dtype=np.float64))[:MOST_ROWS]
    shares = np.clip((numbers + 1) / 2, 0.0, 1.0)
    return [
        Row(f"a{i}", f"{number:+.2f}", min(0.5, share), max(0.5, share))
        for i, (number, share) in enumerate(zip(numbers.tolist(), shares.tolist(), strict=True))
    ]


def panel_height(rows: int) -> int:
    """The height of a panel with so many rows."""
    return 2 * MARGIN + LINE * (2 + min(max(rows, 1), ROWS_PER_COLUMN))


def with_panel(frame: Frame, head: Sequence[str], rows: Sequence[Row]) -> Frame:
    """The frame, centered if it is narrow, above a panel with two lines of text and the rows."""
    height, width, _ = frame.shape
    full = max(width, LEAST_WIDTH)
    canvas = Image.new("RGB", (full, height + panel_height(len(rows))), BACKGROUND)
    canvas.paste(Image.fromarray(frame), ((full - width) // 2, 0))
    pen, font = ImageDraw.Draw(canvas), _font()
    for number, text in enumerate(head):
        pen.text((MARGIN, height + MARGIN + number * LINE), text, fill=INK if number == 0 else SOFT, font=font)
    columns = max(1, math.ceil(len(rows) / ROWS_PER_COLUMN))
    column = (full - 2 * MARGIN) // columns
    for number, row in enumerate(rows):
        left = MARGIN + number // ROWS_PER_COLUMN * column
        top = height + MARGIN + (2 + number % ROWS_PER_COLUMN) * LINE
        _draw_row(pen, row, left, top, column - (MARGIN if columns > 1 else 0))
    return np.asarray(canvas)


def _draw_row(pen: ImageDraw.ImageDraw, row: Row, left: int, top: int, width: int) -> None:
    font, color = _font(), CHOSEN if row.chosen else INK
    name, value = int(width * NAME_SHARE), int(width * VALUE_SHARE)
    pen.text((left, top), _clipped(row.name, name - 3), fill=color, font=font)
    bar, track = left + name, width - name - value
    pen.rectangle((bar, top + 3, bar + track, top + LINE - 4), fill=TRACK)
    ends = (bar + round(row.start * track), top + 3, bar + max(1, round(row.end * track)), top + LINE - 4)
    pen.rectangle(ends, fill=CHOSEN if row.chosen else BAR)
    pen.text((left + width, top), row.value, fill=color, font=font, anchor="ra")


def _clipped(text: str, width: int) -> str:
    """The text without what does not fit."""
    while text and _font().getlength(text) > width:
        text = text[:-1]
    return text


@cache
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size=12)


def grid(episodes: Sequence[Sequence[Frame]]) -> list[Frame]:
    """Episodes of equal frames side by side, as many frames as the longest has.

    An episode that has ended stays at its last frame, darkened.
    """
    columns = math.ceil(math.sqrt(len(episodes)))
    rows = math.ceil(len(episodes) / columns)
    height, width, _ = episodes[0][0].shape
    frames = []
    for at in range(max(map(len, episodes))):
        canvas = np.zeros((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), np.uint8)
        for number, episode in enumerate(episodes):
            top, left = number // columns * (height + GAP), number % columns * (width + GAP)
            tile = episode[at] if at < len(episode) else episode[-1] // 2
            canvas[top : top + height, left : left + width] = tile
        frames.append(canvas)
    return frames
