"""What a person reads while a run goes on."""

import re

import pytest

from playvirtual.training.progress import Lines, per_second


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.0, "0/s"), (0.4213, "0.421/s"), (3.0, "3/s"), (99.96, "100/s"), (6050.4, "6050/s"), (123456.0, "123456/s")],
)
def test_a_rate_is_a_plain_number(rate: float, text: str) -> None:
    assert per_second(rate) == text


def test_a_line_of_a_fast_run_has_no_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("toy/catch rl", total=10**9)
    lines.begin(0)
    lines.step(10**9, "return 1.0")
    said = capsys.readouterr().out
    assert re.fullmatch(r"toy/catch rl: 1000000000/1000000000 steps, \d+/s, 0:00:00 left, return 1\.0\n", said)
