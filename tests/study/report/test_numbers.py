"""The numbers of a report against a plain reading of the same run folders, in lists and loops."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

from playvirtual.study.report.completeness import listings, summary
from playvirtual.study.report.records import collect, read
from playvirtual.study.report.sections import Section, sections
from playvirtual.study.report.statistics import Estimate
from playvirtual.study.report.tables import score_tables
from playvirtual.study.report.tables.ablation_tables import ablation_tables
from playvirtual.study.report.tables.analysis_tables import analysis_tables, complexity_table
from playvirtual.study.report.tables.table import Table
from tests.study.untrained import write_run

# Random play and the human player, as the paper prints them.
ENDS = {"pong": (-20.7, 14.6), "alien": (227.8, 7127.7), "breakout": (1.7, 30.5)}
# method → game → scores of seeds 1, 2, …; PlayVirtual has three seeds of Pong and four of the others.
SCORES = {
    "spr": {
        "alien": [700.0, 1500.0, 400.0, 900.0],
        "breakout": [10.0, 31.0, 14.5, 22.0],
        "pong": [-19.0, -3.0, -11.0, 5.0],
    },
    "playvirtual": {
        "alien": [2600.0, 500.0, 900.0, 7000.0],
        "breakout": [14.5, 60.0, 9.0, 1.0],
        "pong": [-3.0, 10.0, -20.0],
    },
    "playvirtual-nd": {"alien": [800.0, 600.0]},
}
PAPER = {"SPR, paper": (801.5, 17.1, -5.9), "PlayVirtual, paper": (947.8, 20.6, -3.0)}  # alien, breakout, pong


def hns(game: str, score: float) -> float:
    low, high = ENDS[game]
    return (score - low) / (high - low)


def scaled(method: str, *, runs: int | None = None) -> dict[str, list[float]]:
    """Game → human-normalised scores of its first runs, by default of all."""
    return {game: [hns(game, s) for s in values[:runs]] for game, values in SCORES[method].items()}


def middle_half(values: list[float]) -> float:
    """The mean without the lowest and the highest quarter, each rounded down."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


def aggregates(by_game: dict[str, list[float]]) -> list[float]:
    """IQM, median, mean, optimality gap."""
    pooled = [score for values in by_game.values() for score in values]
    means = [fmean(values) for values in by_game.values()]
    shortfall = [max(0.0, 1.0 - score) for score in pooled]
    return [middle_half(pooled), median(means), fmean(means), fmean(shortfall)]


def write_study(root: Path) -> None:
    """Folders whose order is not that of the seeds; every run was better before its last evaluation."""
    for method, games in SCORES.items():
        for game, values in games.items():
            for seed, score in enumerate(values, 1):
                run = root / method / game / f"run-{9 - seed}"
                write_run(run, f"atari/{game}", method, seed, score)
                lines = [
                    {"step": step, "mean": mean, "returns": [mean]} for step, mean in ((20_000, 9e3), (60_000, -9e3))
                ]
                last = (run / "evaluations.jsonl").read_text()
                (run / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + last)
    unfinished = root / "unfinished"
    write_run(unfinished, "atari/pong", "playvirtual", 4, 21.0)
    (unfinished / "evaluations.jsonl").write_text('{"step": 99999, "mean": 21.0, "returns": [21.0]}\n')


@pytest.fixture(scope="module")
def atari(tmp_path_factory: pytest.TempPathFactory) -> Section:
    root = tmp_path_factory.mktemp("study")
    write_study(root)
    (section,) = sections(collect([root])[0])
    return section


def point(cell: str) -> float:
    return float(cell.split(" [")[0])


def ends(cell: str) -> tuple[float, float]:
    low, high = cell.split(" [")[1].rstrip("]").split(", ")
    return float(low), float(high)


def by_first(table: Table | None) -> dict[str, tuple[str, ...]]:
    assert table is not None
    return {row[0]: row[1:] for row in table.rows}


def test_aggregates_use_the_last_evaluation_of_the_same_number_of_first_seeds(atari: Section) -> None:
    table = score_tables.aggregate_table(atari)
    rows = by_first(table)
    assert list(rows) == ["spr", "playvirtual", "SPR, paper", "PlayVirtual, paper"]  # ND lacks games
    expected = {"spr": aggregates(scaled("spr")), "playvirtual": aggregates(scaled("playvirtual", runs=3))}
    assert [rows[name][0] for name in expected] == ["3 × 4", "3 × 3"]
    for name, numbers in expected.items():
        assert [point(cell) for cell in rows[name][1:]] == pytest.approx(numbers, abs=6e-4), name
        assert all(low < number < high for number, (low, high) in zip(numbers, map(ends, rows[name][1:]), strict=True))
    # The higher is better but for the gap.
    better = [max, max, max, min]
    best = [
        (["spr", "playvirtual"].index(f(expected, key=lambda n: expected[n][c])), c + 2) for c, f in enumerate(better)
    ]
    assert table is not None
    assert table.strong == set(best)
    assert "Left out, because they lack some of these tasks: playvirtual-nd." in table.note
    assert "These are 3 of the suite's 26 tasks" in table.note


def test_the_papers_aggregates_are_over_the_same_games(atari: Section) -> None:
    rows = by_first(score_tables.aggregate_table(atari))
    for name, scores in PAPER.items():
        values = [hns(game, score) for game, score in zip(("alien", "breakout", "pong"), scores, strict=True)]
        assert rows[name] == ("3 means", "—", f"{median(values):.3f}", f"{fmean(values):.3f}", "—")


def test_intervals_are_those_of_seeds_drawn_anew_within_each_game(atari: Section) -> None:
    """All draws of three of three seeds of a game are 27: the mean's 95 % interval over them by enumeration."""
    values = scaled("playvirtual", runs=3)
    means = [sorted(fmean(draw) for draw in itertools.product(game, repeat=3)) for game in values.values()]
    every = sorted(fmean(combination) for combination in itertools.product(*means))  # 27³, all equally likely
    found = ends(by_first(score_tables.aggregate_table(atari))["playvirtual"][3])
    for end, share in zip(found, (0.025, 0.975), strict=True):  # of 2,000 draws, and printed with three digits
        below, not_above = (sum(value < end + digit for value in every) / len(every) for digit in (-6e-4, 6e-4))
        assert below - 0.01 < share < not_above + 0.01


def test_probability_of_improvement_counts_pairs_of_runs(atari: Section) -> None:
    comparison = score_tables.pairs(atari)[0]
    assert (comparison.x.name, comparison.y.name) == ("playvirtual", "spr")
    assert (comparison.tasks, comparison.runs) == (3, 3)
    chances = []
    for game in ENDS:
        pairs = list(itertools.product(SCORES["playvirtual"][game][:3], SCORES["spr"][game]))
        chances.append(sum(1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs) / len(pairs))
    assert float(comparison.estimate.point) == pytest.approx(fmean(chances))
    table = score_tables.improvement_table(atari, [comparison])
    assert table is not None
    assert table.rows[0][:2] == ("playvirtual over spr", "3 × 3 and 4")
    assert point(table.rows[0][2]) == pytest.approx(fmean(chances), abs=6e-4)
    assert table.rows[0][3] == "not told apart by these runs"
    assert "Two numbers of runs are those of the first and of the second." in table.note
    assert table.note.endswith("Left out, because other tasks of the setting have fewer seeds: runs of playvirtual.")


def test_a_pair_is_compared_on_the_tasks_that_both_have(atari: Section) -> None:
    """playvirtual-nd has two runs of alien alone, 800 and 600."""
    found = {(c.x.name, c.y.name): c for c in score_tables.pairs(atari)}
    assert list(found) == [("playvirtual", "spr"), ("playvirtual-nd", "spr"), ("playvirtual-nd", "playvirtual")]
    over_spr = found["playvirtual-nd", "spr"]  # of 700, 1,500, 400, 900: 800 beats two and 600 one
    assert (over_spr.tasks, over_spr.runs, float(over_spr.estimate.point)) == (1, 2, 3 / 8)
    over_whole = found["playvirtual-nd", "playvirtual"]  # of 2,600, 500, 900, 7,000: each beats one
    assert (over_whole.tasks, over_whole.runs, float(over_whole.estimate.point)) == (1, 2, 2 / 8)


def test_of_many_pairs_those_with_the_most_common_tasks_are_shown(tmp_path: Path) -> None:
    """Seven pairs have two tasks in common, one of them `spr` under either preset, and fifteen have one."""
    for method in ("spr", "playvirtual", "rl", "playvirtual-nd"):
        for task in ("cheetah-run", "walker-walk"):
            write_run(tmp_path / f"{method}-{task}", f"dmc/{task}", method, 1, 500.0)
    for task in ("cheetah-run", "walker-walk"):
        write_run(tmp_path / f"reference-{task}", f"dmc/{task}", "spr", 1, 500.0, preset="reference")
    for method in ("playvirtual-latent", "spr-bdm", "playvirtual-no-warmup"):
        write_run(tmp_path / method, "dmc/cheetah-run", method, 1, 500.0)
    (section,) = sections(collect([tmp_path])[0])
    compared = score_tables.pairs(section)
    assert (compared[0].x.name, compared[0].y.name) == ("playvirtual", "spr")
    assert [c.tasks for c in compared] == [2] * 7 + [1] * 8
    assert {c.x.preset for c in compared[:7]} == {"paper", "reference"}
    table = score_tables.improvement_table(section, compared)
    assert table is not None
    assert table.note.endswith("Left out: 7 pairs, none with more common tasks than the last.")


def test_among_pairs_of_as_many_tasks_one_preset_and_playvirtual_come_first(
    tmp_path: Path,
) -> None:
    for method, preset in itertools.product(("spr", "rl", "playvirtual"), ("paper", "reference")):
        write_run(tmp_path / f"{method}-{preset}", "dmc/cheetah-run", method, 1, 500.0, preset=preset)
    (section,) = sections(collect([tmp_path])[0])
    pairs = [(c.x.method, c.y.method, c.x.preset == c.y.preset) for c in score_tables.pairs(section)]
    assert pairs[:2] == [("playvirtual", "spr", True)] * 2
    assert [one_preset for _, _, one_preset in pairs] == [True] * 6 + [False] * 3
    assert ["playvirtual" in pair for pair in pairs[2:6]] == [True, True, False, False]
    assert ["playvirtual" in pair for pair in pairs[6:]] == [True, False, False]


def test_settings_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for K in (12, 3, 8):
        write_run(tmp_path / str(K), "dmc/cheetah-run", "playvirtual", 1, 500.0, K=K)
    write_run(tmp_path / "spr", "dmc/cheetah-run", "spr", 1, 500.0)
    (section,) = sections(collect([tmp_path])[0])
    assert [setting.name for setting in section.runs] == ["spr", *(f"playvirtual, K = {K}" for K in (3, 8, 12))]


def test_one_run_of_a_task_against_three_leaves_no_interval(tmp_path: Path) -> None:
    """The three runs could be drawn anew, the one cannot: what came of it would be the spread of one side alone."""
    for seed, score in enumerate((100.0, 300.0, 500.0), 1):
        write_run(tmp_path / f"spr-{seed}", "dmc/cheetah-run", "spr", seed, score)
    write_run(tmp_path / "playvirtual", "dmc/cheetah-run", "playvirtual", 1, 400.0)
    (section,) = sections(collect([tmp_path])[0])
    (comparison,) = score_tables.pairs(section)
    assert [float(value) for value in comparison.estimate] == [pytest.approx(2 / 3)] * 3
    table = score_tables.improvement_table(section, [comparison])
    assert table is not None
    assert table.rows == [("playvirtual over spr", "1 × 1 and 3", "0.667", "one run of a task: no interval")]
    assert "Left out" not in table.note


def test_the_aggregates_of_an_unfinished_suite_are_of_the_most_tasks_that_settings_share(tmp_path: Path) -> None:
    ran = {"spr": ("cheetah-run", "walker-walk", "finger-spin"), "playvirtual": ("cheetah-run", "walker-walk")}
    for method, tasks in ran.items():
        for task in tasks:
            write_run(tmp_path / f"{method}-{task}", f"dmc/{task}", method, 1, 500.0)
    write_run(tmp_path / "rl", "dmc/cheetah-run", "rl", 1, 100.0)
    (section,) = sections(collect([tmp_path])[0])
    settings, tasks = section.compared  # 2 × 2 runs, where one setting has 3 and one task has 3
    assert ([setting.name for setting in settings], tasks) == (
        ["spr", "playvirtual"],
        ["dmc/cheetah-run", "dmc/walker-walk"],
    )


def test_the_aggregates_of_a_whole_suite_are_of_all_its_tasks(tmp_path: Path) -> None:
    suite = ("finger-spin", "cartpole-swingup", "reacher-easy", "cheetah-run", "walker-walk", "ball_in_cup-catch")
    for task in suite:
        write_run(tmp_path / f"spr-{task}", f"dmc/{task}", "spr", 1, 500.0)
    for method in ("rl", "playvirtual"):
        for task in suite[:-1]:
            write_run(tmp_path / f"{method}-{task}", f"dmc/{task}", method, 1, 500.0)
    (section,) = sections(collect([tmp_path])[0])
    settings, tasks = section.compared  # though three settings share five of the six tasks
    assert ([setting.name for setting in settings], len(tasks)) == (["spr"], 6)


def test_settings_without_a_common_task_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "s", "dmc/cheetah-run", "spr", 1, 1.0)
    write_run(tmp_path / "p", "dmc/walker-walk", "playvirtual", 1, 2.0)
    assert score_tables.pairs(sections(collect([tmp_path])[0])[0]) == []


@pytest.mark.parametrize(
    ("ours", "reading"),
    [
        ((5.0, 6.0, 7.0, 8.0), "better"),
        ((0.0, -1.0, 0.5, 0.1), "worse"),
        ((1.0, 2.0, 9.0, 0.0), "not told apart by"),
    ],
)
def test_a_reading_says_no_more_than_its_interval(ours: tuple[float, ...], reading: str, tmp_path: Path) -> None:
    for seed in (1, 2, 3, 4):
        write_run(tmp_path / f"s{seed}", "dmc/cheetah-run", "spr", seed, float(seed))
        write_run(tmp_path / f"p{seed}", "dmc/cheetah-run", "playvirtual", seed, ours[seed - 1])
    (comparison,) = score_tables.pairs(sections(collect([tmp_path])[0])[0])
    assert score_tables.verdict(comparison).startswith(reading)


@pytest.mark.parametrize(("runs", "tasks"), [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)])
def test_runs_that_chance_parts_too_often_tell_nothing(runs: int, tasks: int, tmp_path: Path) -> None:
    """All runs of one side are above all of the other; how often equal settings do that is counted over their ranks."""
    for task, seed in itertools.product(("cheetah-run", "walker-walk", "finger-spin")[:tasks], range(1, runs + 1)):
        write_run(tmp_path / f"s-{task}-{seed}", f"dmc/{task}", "spr", seed, float(seed))
        write_run(tmp_path / f"p-{task}-{seed}", f"dmc/{task}", "playvirtual", seed, 10.0 + seed)
    (comparison,) = score_tables.pairs(sections(collect([tmp_path])[0])[0])
    assert [float(value) for value in comparison.estimate] == [1.0, 1.0, 1.0]
    deals = len(list(itertools.combinations(range(2 * runs), runs))) ** tasks
    told = 2 / deals <= 0.05  # the deals in which one side has the upper ranks on all tasks
    assert score_tables.verdict(comparison) == ("better" if told else "too few runs to tell")


def test_aggregates_say_which_seeds_they_leave_out(tmp_path: Path) -> None:
    """One task has three seeds and the other one: the aggregates are of one seed of each."""
    for seed, score in enumerate((300.0, 800.0, 850.0), 1):
        write_run(tmp_path / f"c{seed}", "dmc/cartpole-swingup", "playvirtual", seed, score)
    write_run(tmp_path / "r", "dmc/reacher-easy", "playvirtual", 1, 600.0)
    for task in ("cartpole-swingup", "reacher-easy"):
        write_run(tmp_path / f"spr-{task}", f"dmc/{task}", "spr", 1, 500.0)
    table = score_tables.aggregate_table(sections(collect([tmp_path])[0])[0])
    assert table is not None
    assert by_first(table)["playvirtual"][1:3] == ("0.450", "0.450")
    said = "Left out, because other tasks of the setting have fewer seeds: 2 of 4 runs of playvirtual."
    assert said in table.note


def test_scores_are_means_and_sample_deviations_over_all_seeds(atari: Section) -> None:
    table = score_tables.score_table(atari)
    rows = by_first(table)
    assert table.columns[1:5] == ("random", "human", "SPR, paper", "PlayVirtual, paper")
    assert rows["pong"][:4] == ("−20.7", "14.6", "−5.90", "−3.00 ± 13.2")  # SPR's own paper has no deviations
    assert rows["alien"][:4] == ("227.8", "7,128", "801.5", "947.8 ± 231.7")
    for game, row in rows.items():
        for method, cell in zip(SCORES, row[4:], strict=True):
            values = SCORES[method].get(game, [])
            if not values:
                assert cell == "—"
                continue
            mean, rest = cell.replace("−", "-").replace(",", "").split(" ± ")
            std, count = rest.rstrip(")").split(" (")
            assert (float(mean), float(std)) == pytest.approx((fmean(values), stdev(values)), rel=5e-3, abs=6e-3)
            assert int(count) == len(values)
    # Bold is the highest mean of each game's runs.
    bold = {table.rows[r][0]: table.columns[c] for r, c in table.strong}
    assert bold == {"alien": "playvirtual", "breakout": "playvirtual", "pong": "playvirtual"}
    assert {
        game: max((m for m in SCORES if game in SCORES[m]), key=lambda m: fmean(SCORES[m][game])) for game in ENDS
    } == bold


def test_a_score_beside_which_no_other_stands_is_not_bold(tmp_path: Path) -> None:
    for method, task in (("spr", "cheetah-run"), ("spr", "walker-walk"), ("playvirtual", "cheetah-run")):
        write_run(tmp_path / f"{method}-{task}", f"dmc/{task}", method, 1, 500.0 if method == "spr" else 400.0)
    table = score_tables.score_table(sections(collect([tmp_path])[0])[0])
    assert {(table.rows[r][0], table.columns[c]) for r, c in table.strong} == {("cheetah-run", "spr")}


def test_a_minus_sign_is_one_in_every_table() -> None:
    assert score_tables.interval(Estimate(-0.2, -0.4, 0.1), digits=1) == "−0.2 [−0.4, 0.1]"
    assert score_tables.number(-20.7) == "−20.7"


def test_human_normalised_scores_are_means_in_percent(atari: Section) -> None:
    rows = by_first(score_tables.hns_table(atari))
    for game, row in rows.items():
        for method, cell in zip(SCORES, row, strict=True):
            values = SCORES[method].get(game)
            mean = None if values is None else f"{100 * fmean(hns(game, v) for v in values):.1f}"
            assert cell == ("—" if mean is None else mean.replace("-", "−"))


def test_runs_whose_states_look_alike_at_the_end_are_named(tmp_path: Path) -> None:
    for seed, spreads in enumerate([(0.2, 0.0004), (0.0004, 0.2), (0.3, None), (0.2, 0.0004)], 1):
        run = tmp_path / str(seed)
        write_run(run, "toy/catch", "spr", seed, 1.0)
        named = [{} if spread is None else {"target_spread": spread} for spread in spreads]
        lines = [json.dumps({"step": 500 * i, **line}) + "\n" for i, line in enumerate(named, 1)]
        (run / "metrics.jsonl").write_text("".join(lines))
    evaluations = tmp_path / "4" / "evaluations.jsonl"  # this run is not finished: it may learn yet
    evaluations.write_text(json.dumps({"step": 1000, "mean": 1.0, "returns": [1.0]}) + "\n")
    (section,) = sections(collect([tmp_path])[0])
    found = {listing.title: listing.lines for listing in listings([], [section])}
    (line,) = found["Runs whose representation has collapsed"]
    assert line.path == tmp_path / "1"
    assert line.text == "the targets' spread is 0.0004 at step 1,000: all states look alike to the agent"


def test_what_is_missing_is_named(atari: Section) -> None:
    found = {listing.title: [line.text for line in listing.lines] for listing in listings([], [atari])}
    assert found["Runs that are not finished"] == ["evaluated to step 99,999 of 100,000"]
    absent = found["Runs that are not there"]
    assert "Atari-100k, playvirtual: atari/pong seed 4" in absent
    assert "Atari-100k, playvirtual-nd: atari/alien seeds 3, 4" in absent
    assert "Atari-100k, playvirtual-nd: atari/pong seeds 1, 2, 3, 4" in absent
    assert not any("spr:" in line for line in absent)
    assert absent[-1].startswith("Atari-100k, no run of 23 of the suite's tasks: amidar, assault,")
    records = [run for games in atari.runs.values() for runs in games.values() for run in runs.values()]
    assert summary([*records, *atari.unfinished], []) == "25 finished runs of 3 tasks, 1 unfinished"


def test_ablations_are_medians_over_the_tasks_of_means_over_seeds(tmp_path: Path) -> None:
    write_study(tmp_path)
    for game, values in (("alien", [3000.0, 200.0]), ("pong", [0.0, -9.0, 4.0])):
        for seed, score in enumerate(values, 1):
            write_run(tmp_path / "k3" / game / str(seed), f"atari/{game}", "playvirtual", seed, score, K=3)
    returns = {"cheetah-run": [300.0, 500.0], "walker-walk": [900.0, 100.0], "finger-spin": [820.0, 840.0]}
    for task, values in returns.items():
        for seed, score in enumerate(values, 1):
            write_run(tmp_path / "d" / task / str(seed), f"dmc/{task}", "spr", seed, score, K=3)
            write_run(tmp_path / "e" / task / str(seed), f"dmc/{task}", "spr", seed, score + 50.0)
    tables = {table.name: table for table in ablation_tables(sections(collect([tmp_path])[0]))}
    rows = by_first(tables["ablation-ablation-k"])
    k9 = median(fmean(values) for values in scaled("playvirtual", runs=3).values())
    k3 = median([fmean([hns("alien", 3000.0), hns("alien", 200.0)]), fmean([hns("pong", 0.0), hns("pong", -9.0)])])
    assert point(rows["PlayVirtual, K = 9"][0]) == pytest.approx(100 * k9, abs=0.06)
    assert rows["PlayVirtual, K = 9"][1:3] == ("3 × 3", "47.2")
    assert point(rows["PlayVirtual, K = 3"][0]) == pytest.approx(100 * k3, abs=0.06)
    assert rows["PlayVirtual, K = 3"][1:3] == ("2 × 2", "34.8")
    assert rows["SPR, K = 5"] == ("—", "—", "36.1", "—", "—", "—")
    means = [fmean(values) for values in returns.values()]
    assert (point(rows["SPR, K = 3"][3]), *rows["SPR, K = 3"][4:]) == (median(means), "3 × 2", "725.0")
    assert (point(rows["SPR, K = 6"][3]), *rows["SPR, K = 6"][4:]) == (median(means) + 50.0, "3 × 2", "723.0")


def test_ablations_take_runs_of_their_own_preset(tmp_path: Path) -> None:
    for preset, score in (("paper", 100.0), ("reference", 200.0)):
        write_run(tmp_path / f"n-{preset}", "dmc/cheetah-run", "playvirtual-nd", 1, score, preset=preset)
        write_run(tmp_path / f"p-{preset}", "dmc/cheetah-run", "playvirtual", 1, score + 1.0, preset=preset)
    tables = {table.name: table for table in ablation_tables(sections(collect([tmp_path])[0]))}
    for name, score in (("ablation-no-dm-update", 100.0), ("ablation-no-dm-update-reference", 200.0)):
        rows = by_first(tables[name])
        assert rows["PlayVirtual-ND"] == (f"{score:.1f}", "1 × 1", "777.5")
        assert rows["PlayVirtual"] == (f"{score + 1:.1f}", "1 × 1", "797.0")


def test_analyses_are_means_and_sample_deviations_beside_the_papers(tmp_path: Path) -> None:
    """The paper's errors are of an encoder without tanh, which preset reference has."""
    errors = {
        ("paper", "spr"): (0.02, 0.05),
        ("reference", "spr"): (0.1, 0.3),
        ("reference", "playvirtual"): (0.2, 0.5),
    }
    for (preset, method), values in errors.items():
        for seed, error in enumerate(values, 1):
            run = tmp_path / preset / method / f"seed-{seed}"
            write_run(run, "dmc/cheetah-run", method, seed, 400.0, preset=preset)
            (run / "probes.json").write_text(json.dumps({"dynamics": {"step": 100_000, "mse": error}}))
    for seed, score in ((1, 450.0), (2, 460.0)):
        encoder = str(tmp_path / "paper" / "spr" / f"seed-{seed}")
        write_run(tmp_path / f"f{seed}", "dmc/cheetah-run", "rl", seed, score, encoder_from=encoder)
        write_run(tmp_path / f"n{seed}", "dmc/cheetah-run", "rl", seed, score - 100.0)
    dynamics, frozen = analysis_tables(sections(collect([tmp_path])[0]))
    assert [row[1:] for row in dynamics.rows] == [
        ("spr", "0.0350 ± 0.0212", "2", "—"),
        ("spr (reference)", "0.2000 ± 0.1414", "2", "0.0731"),
        ("playvirtual (reference)", "0.3500 ± 0.2121", "2", "0.0672"),
    ]
    assert [row[1:] for row in frozen.rows] == [
        ("none", "355.0 ± 7.07", "2", "388.0 ± 89.0"),
        ("spr", "455.0 ± 7.07", "2", "478.0 ± 30.0"),
    ]


def test_probed_parameters_are_read_and_not_counted_again(tmp_path: Path) -> None:
    """The run has no checkpoint to count from."""
    write_run(tmp_path / "run", "atari/pong", "playvirtual", 1, -3.0)
    assert complexity_table(sections(collect([tmp_path])[0])) is None
    found = {"step": 100_000, "parameters": 123_456, "parameters_as_in_paper": 3_908_523}
    (tmp_path / "run" / "probes.json").write_text(json.dumps({"complexity": found}))
    table = complexity_table(sections(collect([tmp_path])[0]))
    assert table is not None
    assert table.rows == [("atari/pong", "playvirtual", "123,456", "3,908,523", "3.91 M")]


def test_scores_without_a_scale_are_put_into_the_range_of_the_runs(tmp_path: Path) -> None:
    for method, scores in (("rl", (2.0, 4.0)), ("spr", (3.0, 10.0))):
        for seed, score in enumerate(scores, 1):
            write_run(tmp_path / f"{method}{seed}", "toy/catch", method, seed, score)
    (section,) = sections(collect([tmp_path])[0])
    assert section.matrix(section.compared[0][0]).tolist() == [[0.0], [0.25]]
    assert section.matrix(section.compared[0][1]).tolist() == [[0.125], [1.0]]


@pytest.mark.parametrize(
    ("steps", "spr", "ours"), [(None, "467.0 ± 36.0", "474.0 ± 50.0"), (500_000, "716.0 ± 47.0", "719.0 ± 51.0")]
)
def test_dmcontrol_stands_beside_the_papers_scores_of_its_length(
    steps: int | None, spr: str, ours: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "a", "dmc/cheetah-run", "spr", 1, 250.0, **({} if steps is None else {"steps": steps}))
    (section,) = sections(collect([tmp_path])[0])
    assert by_first(score_tables.score_table(section))["cheetah-run"] == (spr, ours, "250.0 (1)")
    rows = by_first(score_tables.aggregate_table(section))
    assert rows["spr"] == ("1 × 1", "0.250", "0.250", "0.250", "0.750")
    assert rows["SPR, paper"][2] == f"{float(spr.split(' ')[0]) / 1000:.3f}"


def test_a_baseline_stands_beside_its_printed_column(tmp_path: Path) -> None:
    """The paper's columns are there for the methods that have runs, and for SPR and PlayVirtual."""
    write_run(tmp_path / "a", "atari/alien", "curl", 1, 600.0)
    write_run(tmp_path / "b", "atari/alien", "der", 1, 700.0)
    write_run(tmp_path / "c", "dmc/finger-spin", "sac-ae", 1, 500.0)
    atari, dmc = sections(collect([tmp_path])[0])
    table = score_tables.score_table(atari)
    columns = ("DER, paper", "CURL, paper", "SPR, paper", "PlayVirtual, paper", "der", "curl")
    assert table.columns == ("task", "random", "human", *columns)
    assert by_first(table)["alien"][2:] == ("739.9", "558.2", "801.5", "947.8 ± 231.7", "700.0 (1)", "600.0 (1)")
    rows = by_first(score_tables.aggregate_table(atari))
    assert rows["CURL, paper"][2] == f"{hns('alien', 558.2):.3f}"
    assert by_first(score_tables.score_table(dmc))["finger-spin"][0] == "740.0 ± 64.0"


def test_the_whole_printed_table_says_what_is_data_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "atari/alien", "spr", 1, 600.0)
    write_run(tmp_path / "b", "dmc/finger-spin", "spr", 1, 500.0)
    write_run(tmp_path / "c", "toy/catch", "spr", 1, 1.0)
    atari, dmc, toy = sections(collect([tmp_path])[0])
    table = score_tables.published_table(atari)
    assert table is not None
    assert table.columns == ("task", "SimPLe", "DER", "OTRainbow", "CURL", "DrQ", "SPR", "PlayVirtual")
    assert table.rows == [("alien", "616.9", "739.9", "824.7", "558.2", "771.2", "801.5", "947.8")]
    assert "SimPLe: published numbers alone, not built here" in table.note
    table = score_tables.published_table(dmc)
    assert table is not None
    assert table.columns[1:5] == ("PlaNet", "Dreamer", "SLAC", "SAC+AE")
    assert "PlaNet, Dreamer, SLAC: published numbers alone, not built here" in table.note
    assert score_tables.published_table(toy) is None


def test_a_length_that_the_paper_has_not_has_no_number_of_it(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "dmc/cheetah-run", "spr", 1, 250.0, steps=200_000)
    write_run(tmp_path / "b", "atari/pong", "spr", 1, -10.0, steps=50_000)
    for section in sections(collect([tmp_path])[0]):
        assert "SPR, paper" not in score_tables.score_table(section).columns
        assert "SPR, paper" not in by_first(score_tables.aggregate_table(section))


def test_time_is_that_of_a_run_and_its_shares(tmp_path: Path) -> None:
    lines = {"spr": (100.0, 40.0), "playvirtual": (150.0, 90.0)}
    for method, (seconds, update) in lines.items():
        for seed in (1, 2):
            run = tmp_path / f"{method}{seed}"
            write_run(run, "dmc/cheetah-run", method, seed, 1.0)
            line = {"step": 100_000, "seconds": seconds * seed, "update": update * seed, "environment": 10.0 * seed}
            (run / "timing.jsonl").write_text(json.dumps(line) + "\n")
    (section,) = sections(collect([tmp_path])[0])
    rows = by_first(score_tables.time_table(section))
    # Means of 100 and 200 s, and of 150 and 300 s; 200,000 steps in 300 and 450 s.
    assert rows["spr"] == ("2", "2 min", "667", "10 %", "40 %", "0 %", "1.00", "—", "5 min")
    assert rows["playvirtual"] == ("2", "4 min", "444", "7 %", "60 %", "0 %", "1.50", "1.12", "8 min")


@pytest.mark.parametrize(("last", "finished"), [(99_999, False), (100_000, True), (100_004, True)])
def test_a_run_is_finished_once_its_last_step_is_evaluated(last: int, finished: bool, tmp_path: Path) -> None:
    write_run(tmp_path / "run", "atari/pong", "spr", 1, 3.0)
    lines = [{"step": step, "mean": float(step), "returns": [float(step)]} for step in (10, last)]
    (tmp_path / "run" / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = read(tmp_path / "run")
    assert (record.finished, record.score, record.reached) == (finished, float(last), last)


def test_training_curves_are_thinned_by_means(tmp_path: Path) -> None:
    """150 points in groups of three: each is the mean at the last of its steps."""
    write_run(tmp_path / "run", "atari/pong", "spr", 1, 3.0)
    lines = [{"step": n, "return": float(n * n)} for n in range(1, 151)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = read(tmp_path / "run").training
    assert len(curve) == 50
    assert curve[:2] == [(3, pytest.approx(14 / 3)), (6, pytest.approx(77 / 3))]
    assert math.isclose(curve[-1][1], (148**2 + 149**2 + 150**2) / 3)
