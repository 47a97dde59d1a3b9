"""The few lines after a run: its score beside the paper's, and how far it is from the paper's budget."""

import pytest

from playvirtual import published
from playvirtual.presets import build
from playvirtual.study.summary import run_summary


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        (320, ["; this run has 320 steps", "; this run has 320 steps"]),
        (100_000, ["", "; this run has 100000 steps"]),
        (500_000, ["", ""]),
    ],
)
def test_a_dmc_run_shorter_than_the_papers_says_so(steps: int, ends: list[str]) -> None:
    lines = run_summary(build("dmc/cartpole-swingup", steps=steps, min_size=40), [800.0, 900.0]).splitlines()[1:]
    scores = [published.dmc_scores(budget) for budget in (100_000, 500_000)]
    paper = [(s["spr"]["cartpole-swingup"], s["playvirtual"]["cartpole-swingup"]) for s in scores]
    assert lines == [
        f"the paper at {budget} environment steps: SPR† {spr:g}, PlayVirtual {ours:g}{end}"
        for budget, (spr, ours), end in zip(("100k", "500k"), paper, ends, strict=True)
    ]


@pytest.mark.parametrize(("steps", "end"), [(40, "PlayVirtual 20.6; this run has 40 steps"), (100_000, "Virtual 20.6")])
def test_an_atari_run_shorter_than_the_papers_says_so(steps: int, end: str) -> None:
    assert run_summary(build("atari/breakout", steps=steps, min_size=30), [1.0, 2.0]).endswith(end)
