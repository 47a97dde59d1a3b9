"""The paper's published numbers, matrices of scores, and a run's score beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from playvirtual import published
from playvirtual.config.build import build
from playvirtual.errors import InputError
from playvirtual.study.report.statistics import mean, median
from playvirtual.study.scores import SUITES, hns, matrix, published_matrix, run_summary, suite_matrix, suite_tasks


def test_tables_are_complete() -> None:
    assert len(published.human()) == len(published.random()) == 26
    assert {len(games) for games in published.atari_scores().values()} == {26}
    assert {len(games) for games in published.atari_stds().values()} == {26}
    assert len(published.ablations()) == 47
    assert len(published.analyses()) == 21
    for env_steps in published.DMC_BUDGETS:
        assert len(published.dmc_scores(env_steps)["playvirtual"]) == 6
        assert published.dmc_scores(env_steps).keys() == published.dmc_stds(env_steps).keys()


def test_tables_hold_the_printed_numbers() -> None:
    assert published.atari_scores()["playvirtual"]["pong"] == -3.0
    assert published.atari_stds()["playvirtual"]["pong"] == 13.2
    assert published.dmc_scores(100_000)["spr"]["cheetah-run"] == 467
    assert published.dmc_stds(500_000)["playvirtual"]["ball_in_cup-catch"] == 5
    assert published.ablations()[0][:4] == ("effectiveness", "rl (baseline w/o pred)", 33.4, 680.0)
    assert published.ablations()[-1].atari100k_median_hns_pct is None  # action sampling: DMControl only


def tally(column: Mapping[str, float], order: Sequence[str]) -> float:
    """Σ n · (the n-th number of a column): another number for nearly every slip or swap of digits and rows."""
    return round(sum(n * column.get(task, 0.0) for n, task in enumerate(order, 1)), 1)


def test_every_atari_number_is_the_printed_one() -> None:
    """The tallies are of the columns as the paper's source has them, its games in its order."""
    columns = {"human": published.human(), "random": published.random(), **published.atari_scores()}
    stds = {f"std of {name}": column for name, column in published.atari_stds().items()}
    order = list(published.human())
    assert (order[0], order[-1]) == ("alien", "up_n_down")
    assert {name: tally(column, order) for name, column in {**columns, **stds}.items()} == {
        "human": 5332819.0,
        "random": 213534.7,
        "simple": 1449365.9,
        "der": 1068248.0,
        "otr": 729945.0,
        "curl": 1005134.6,
        "drq": 984594.7,
        "spr": 2202590.3,
        "playvirtual": 1608860.7,
        "std of spr_rerun": 507706.0,
        "std of playvirtual": 714165.8,
    }


@pytest.mark.parametrize(
    ("env_steps", "tallies"),
    [
        (
            100_000,
            {
                "planet": (2462, 1036),
                "dreamer": (5736, 2241),
                "sac_ae": (7568, 826),
                "slac": (6846, 1390),
                "curl": (11370, 1617),
                "drq": (14136, 2333),
                "spr": (13404, 3401),
                "playvirtual": (14654, 1798),
            },
        ),
        (
            500_000,
            {
                "planet": (7876, 4690),
                "dreamer": (16738, 2508),
                "sac_ae": (15434, 1152),
                "slac": (12555, 849),
                "curl": (17731, 756),
                "drq": (18523, 999),
                "spr": (18661, 1004),
                "playvirtual": (18837, 644),
            },
        ),
    ],
)
def test_every_dmcontrol_number_is_the_printed_one(env_steps: int, tallies: dict[str, tuple[int, int]]) -> None:
    means, stds = published.dmc_scores(env_steps), published.dmc_stds(env_steps)
    order = ["finger-spin", "cartpole-swingup", "reacher-easy", "cheetah-run", "walker-walk", "ball_in_cup-catch"]
    assert list(means["playvirtual"]) == order
    assert {method: (tally(means[method], order), tally(stds[method], order)) for method in means} == tallies


def test_every_analysis_is_the_printed_one() -> None:
    tasks = ("cartpole-swingup", "reacher-easy", "cheetah-run")
    errors = {"spr": (0.2517, 0.3920, 0.0731), "playvirtual": (0.2357, 0.3633, 0.0672)}
    frozen = {
        "none": ((796, 60), (730, 185), (388, 89)),
        "spr": ((839, 24), (517, 141), (478, 30)),
        "playvirtual": ((847, 31), (828, 67), (512, 31)),
    }
    expected = {("dynamics_mse", t, m): (v, None) for m, row in errors.items() for t, v in zip(tasks, row, strict=True)}
    expected |= {
        ("frozen_encoder_score", t, m): v for m, row in frozen.items() for t, v in zip(tasks, row, strict=True)
    }
    sizes = {("cartpole-swingup", "spr"): 25.81, ("cartpole-swingup", "playvirtual"): 25.86}
    sizes |= {("pong", "spr"): 3.83, ("pong", "playvirtual"): 3.91}
    expected |= {("parameters_millions", task, method): (size, None) for (task, method), size in sizes.items()}
    expected |= {("training_time_overhead_pct", f, "playvirtual"): (n, None) for f, n in (("atari", 6), ("dmc", 12))}
    assert {(a.analysis, a.task, a.method): (a.value, a.std) for a in published.analyses()} == expected


def test_tables_are_read_only() -> None:
    with pytest.raises(TypeError):
        published.human()["pong"] = 0.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("method", "percent"),
    [
        ("playvirtual", 47.2),
        ("spr", 41.5),
        ("drq", 26.8),
        ("otr", 20.4),
        ("curl", 17.5),
        ("der", 16.1),
        ("simple", 14.4),
    ],
)
def test_median_human_normalised_score_is_the_papers(method: str, percent: float) -> None:
    assert 100 * median(published_matrix("atari100k", method)) == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize(("method", "percent"), [("playvirtual", 63.7), ("spr", 70.3)])
def test_mean_human_normalised_score(method: str, percent: float) -> None:
    assert 100 * mean(published_matrix("atari100k", method)) == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize(
    ("suite", "method", "score"),
    [
        ("dmc100k", "playvirtual", 800.5),
        ("dmc500k", "playvirtual", 935.0),
        ("dmc100k", "spr", 719.0),  # its task means as printed give 718.5
        ("dmc500k", "spr", 920.0),
    ],
)
def test_median_dmcontrol_score_is_the_papers(suite: str, method: str, score: float) -> None:
    assert median(published_matrix(suite, method)) == pytest.approx(score, abs=0.5)


def test_hns_by_hand() -> None:
    assert hns("pong", -20.7) == 0.0
    assert hns("pong", 14.6) == 1.0
    np.testing.assert_allclose(hns("breakout", [1.7, 16.1, 59.3]), [0.0, 0.5, 2.0])


def test_suite_matrix_puts_runs_in_rows_and_normalises_atari_only() -> None:
    games = suite_tasks("atari100k")
    runs = {game: [published.random()[game], published.human()[game]] for game in reversed(games)}
    expected = np.stack([np.zeros(26), np.ones(26)])
    np.testing.assert_allclose(suite_matrix("atari100k", runs), expected, atol=1e-12)

    returns = {task: [column, 10.0 + column] for column, task in enumerate(suite_tasks("dmc100k"))}
    np.testing.assert_array_equal(suite_matrix("dmc100k", returns), [np.arange(6), 10 + np.arange(6)])


def test_matrix_refuses_ragged_runs_unless_told_how_many() -> None:
    ragged = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0]}
    with pytest.raises(InputError, match="b has 2 runs and a has 3"):
        matrix(ragged, ["a", "b"])
    np.testing.assert_array_equal(matrix(ragged, ["a", "b"], runs=2), [[1.0, 4.0], [2.0, 5.0]])
    with pytest.raises(InputError, match=r"runs: 3; allowed: 1 to 2, which is what b has"):
        matrix(ragged, ["a", "b"], runs=3)
    with pytest.raises(InputError, match="c has no run"):
        matrix(ragged, ["a", "c"])
    with pytest.raises(InputError, match="tasks: none given"):
        matrix(ragged, [])


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'breakout'"):
        hns("brekout", 1.0)
    with pytest.raises(InputError, match="did you mean 'dmc100k'"):
        suite_tasks("dmc10k")
    with pytest.raises(InputError, match="did you mean 'playvirtual'"):
        published_matrix(SUITES[0], "playvirtul")
    with pytest.raises(InputError, match="env_steps: '7'"):
        published.dmc_scores(7)


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        (320, ["; this run has 320 steps", "; this run has 320 steps"]),
        (100_000, ["", "; this run has 100000 steps"]),
        (500_000, ["", ""]),
    ],
)
def test_a_dmc_run_shorter_than_the_papers_says_so(steps: int, ends: list[str]) -> None:
    lines = run_summary(build("dmc/cartpole-swingup", steps=steps, learning_starts=40), [800.0, 900.0]).splitlines()[1:]
    scores = [published.dmc_scores(budget) for budget in (100_000, 500_000)]
    paper = [(s["spr"]["cartpole-swingup"], s["playvirtual"]["cartpole-swingup"]) for s in scores]
    assert lines == [
        f"the paper at {budget} environment steps: SPR† {spr:g}, PlayVirtual {ours:g}{end}"
        for budget, (spr, ours), end in zip(("100k", "500k"), paper, ends, strict=True)
    ]


def test_a_summary_has_the_spread_of_the_episodes() -> None:
    """1, 2, 3 and 6: mean 3, mean squared deviation (4 + 1 + 0 + 9) / 4 = 3.5."""
    first = run_summary(build("toy/catch", seed=4), [1.0, 2.0, 3.0, 6.0]).splitlines()[0]
    assert first == "toy/catch playvirtual, seed 4: score 3.00 ± 1.87 over 4 episodes"


@pytest.mark.parametrize(("steps", "end"), [(40, "PlayVirtual 20.6; this run has 40 steps"), (100_000, "Virtual 20.6")])
def test_an_atari_run_shorter_than_the_papers_says_so(steps: int, end: str) -> None:
    assert run_summary(build("atari/breakout", steps=steps, learning_starts=30), [1.0, 2.0]).endswith(end)


@pytest.mark.parametrize(
    ("task", "method", "line"),
    [
        ("atari/pong", "otr", "the paper at 100k steps: OTRainbow 1.3, SPR -5.9, PlayVirtual -3"),
        ("atari/pong", "rl", "the paper at 100k steps: SPR -5.9, PlayVirtual -3"),
        ("atari/pong", "drq-virtual", "the paper at 100k steps: SPR -5.9, PlayVirtual -3"),
        ("dmc/reacher-easy", "sac-ae", "the paper at 100k environment steps: SAC+AE 274, SPR† 638, PlayVirtual 785"),
        ("dmc/reacher-easy", "curl", "the paper at 100k environment steps: CURL 538, SPR† 638, PlayVirtual 785"),
    ],
)
def test_a_baseline_stands_beside_its_own_column_of_the_papers_table(task: str, method: str, line: str) -> None:
    assert line in run_summary(build(task, method=method), [1.0]).splitlines()[1:]
