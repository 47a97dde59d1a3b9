"""The paper's experiments as grids, suites, and grids of a user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

import playvirtual as pv
from playvirtual import published
from playvirtual.config.build import build
from playvirtual.config.record import differences
from playvirtual.errors import InputError
from playvirtual.study.sweep.experiments import EXPERIMENTS, SUITE_NAMES, Experiment, Row, experiment, suite
from playvirtual.study.sweep.grids import check_flags, jobs, load, select
from playvirtual.study.sweep.plan import experiments_text


def test_every_published_ablation_row_has_a_setting_and_the_other_way_round() -> None:
    in_grids = [row.published for e in EXPERIMENTS.values() for row in e.rows if row.published]
    in_paper = [(a.study, a.setting) for a in published.ablations()]
    # The backward model of Baseline+BDM can be read in two ways, which share its number.
    assert sorted(in_grids) == sorted([*in_paper, ("effectiveness", "spr-bdm")])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_gives_valid_runs_on_its_suites(name: str) -> None:
    grid = experiment(name)
    for names in grid.suites:
        first = suite(names)[:1]
        found = jobs(grid, first, 1, Path("runs"))
        assert len({job.path for job in found}) == len(found) <= len(grid.rows)


def test_suites_have_the_papers_tasks() -> None:
    assert [len(suite(name)) for name in SUITE_NAMES] == [26, 6, 6, 5, 2]
    assert {entry.options["steps"] for entry in suite("dmc500k")} == {500_000}
    assert [entry.task for entry in suite("toy/catch, minatar/breakout,toy/catch")] == ["toy/catch", "minatar/breakout"]


def test_rows_that_are_one_setting_share_one_run() -> None:
    found = jobs(experiment("ablation-k"), suite("atari/pong"), 1, Path("runs"))
    folders = [job.path.parent.name for job in found]
    # Both schemes at K = 0 are RL alone, and K = 9 is what `playvirtual train atari/pong` does.
    assert folders[:6] == ["rl", "spr-K3", "spr-K5", "spr-K6", "spr", "spr-K12"]
    assert folders[6:] == ["playvirtual-K3", "playvirtual-K6", "playvirtual", "playvirtual-K12"]
    assert {job.config.objective.K for job in found if job.path.parent.name == "rl"} == {0}


def test_M_is_a_multiple_of_the_number_of_actions_where_actions_are_discrete() -> None:
    ms = {task: {job.config.objective.M for job in jobs(experiment("ablation-m"), suite(task), 1, Path("r"))}
          for task in ("atari/pong", "toy/reach")}  # fmt: skip
    assert ms == {"atari/pong": {"0", "1A", "2A", "3A"}, "toy/reach": {"0", "1", "10", "20", "30"}}


def test_flags_of_a_study_leave_a_methods_own_settings_alone() -> None:
    found = jobs(experiment("toy"), suite("toy/catch"), 1, Path("runs"), options={"K": "2", "steps": "600"})
    assert {job.config.method: job.config.objective.K for job in found} == {"rl": 0, "spr": 2, "playvirtual": 2}
    assert {job.config.steps for job in found} == {600}


def test_an_option_of_the_row_wins_over_that_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text('[[row]]\nmethod = "spr"\noptions = {K = 5}\n[[row]]\nmethod = "playvirtual"\n')
    found = jobs(load(str(tmp_path / "grid.toml")), suite("toy/catch"), 1, tmp_path, options={"K": "2", "M": "4"})
    objectives = {job.config.method: (job.config.objective.K, job.config.objective.M) for job in found}
    assert objectives == {"spr": (5, "0"), "playvirtual": (2, "4")}
    assert [job.options["K"] for job in found] == [5, 2]  # what a run is started with


def test_every_seed_is_a_run_of_its_own() -> None:
    found = jobs(experiment("toy"), suite("toy"), 3, Path("runs"))
    assert len(found) == 3 * 2 * 3
    for job in found:
        assert job.path.name == f"seed-{job.config.seed}"
        assert job.options["seed"] == job.config.seed
    assert [job.config.seed for job in found] == [1] * 6 + [2] * 6 + [3] * 6  # seed by seed


def test_a_flag_that_every_row_sets_itself_is_refused() -> None:
    for name, flag in [("ablation-k", "K"), ("ablation-m", "M")]:
        with pytest.raises(InputError, match=f"{flag}: '4' is not allowed with {name}, every row of which sets it"):
            check_flags(experiment(name), {"steps": "600", flag: "4"})
    check_flags(experiment("toy"), {"K": "2", "M": "3"})  # RL sets both, PlayVirtual neither


def test_a_grid_of_ones_own_in_toml_and_in_python(tmp_path: Path) -> None:
    toml = tmp_path / "horizons.toml"
    toml.write_text('suite = "toy/catch"\n[[row]]\nlabel = "short"\nmethod = "spr"\n[row.options]\nK = 3\n[[row]]\n')
    grid = load(str(toml))
    assert grid.rows == (Row("short", "spr", {"K": 3}), Row("playvirtual", "playvirtual"))
    assert grid.suites == ("toy/catch",)
    python = tmp_path / "grid.py"
    python.write_text("rows = [dict(label=f'K {k}', method='spr', options={'K': k}) for k in (1, 2)]\n")
    assert [row.options["K"] for row in load(str(python)).rows] == [1, 2]


def test_the_grid_in_the_documentation_changes_what_its_rows_say(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()
    (tmp_path / "horizons.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    grid = load(str(tmp_path / "horizons.toml"))
    found = jobs(grid, suite(",".join(grid.suites)), 1, tmp_path)
    assert {job.path.parent.name for job in found} == {"spr", "playvirtual-K1", "playvirtual-K5-M2"}
    for job in found:
        if "few" in job.label:
            own = build(job.config.task).objective.M
            assert (own, job.config.objective.M) == ("1A", "2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[row]\n", "is not TOML"),
        ("", "has no row"),
        ('[[row]]\nmethod = "sprr"\n', "row 1: method: 'sprr' is not known; did you mean 'spr'"),
        ('[[row]]\nlable = "x"\n', "'lable' is not known; did you mean 'label'"),
        ("[[row]]\noptions = 3\n", "row 1: options is 3"),
        ("suite = 3\n[[row]]\n", "has suite = 3; allowed: a name, or a list of names"),
        ('suite = ["toy/catch", 3]\n[[row]]\n', r"has suite = \['toy/catch', 3\]; allowed: a name, or a list of names"),
        ('[[row]]\noptions = {task = "toy/reach"}\n', "row 1: option: 'task' is not a row's to set; allowed: --suite"),
        (
            '[[row]]\noptions = {method = "spr"}\n',
            "'method' is not a row's to set; allowed: method = …",
        ),
        ('[[row]]\noptions = {preset = "paper"}\n', "'preset' is not a row's to set; allowed: --preset"),
        ("[[row]]\noptions = {seed = 4}\n", "'seed' is not a row's to set; allowed: --seeds"),
        ('[[row]]\n[[row]]\nmethod = "rl"\nlabel = "playvirtual"\n', "row 2: label: 'playvirtual' is that of row 1"),
        ('[[rows]]\nmethod = "spr"\n[row.options]\nK = 1\n', "'rows' is not known; did you mean 'row'"),
        ("[[wor]]\n", "'wor' is not known; allowed: row, suite, title"),
    ],
)
def test_a_bad_grid_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        load(str(tmp_path / "grid.toml"))


def test_an_option_that_is_no_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "grid.py").write_text("rows = [{'label': 'a', 'options': {1: 2}}]\n")
    with pytest.raises(InputError, match="row 1: option: 1 is not a name"):
        load(str(tmp_path / "grid.py"))


def test_rows_for_other_kinds_of_actions_may_share_a_label(tmp_path: Path) -> None:
    head = "from playvirtual.study.sweep.experiments import Row\n"
    rows = "Row('none', 'spr', actions='discrete'), Row('none', 'rl', actions='{}')"
    (tmp_path / "grid.py").write_text(f"{head}rows = [{rows.format('continuous')}]\n")
    assert len(load(str(tmp_path / "grid.py")).rows) == 2
    (tmp_path / "same.py").write_text(f"{head}rows = [{rows.format('any')}]\n")
    with pytest.raises(InputError, match="row 2: label: 'none' is that of row 1"):
        load(str(tmp_path / "same.py"))


@pytest.mark.parametrize(
    ("rows", "tasks", "kind"), [("sac-ae", "toy/catch", "continuous"), ("der,otr", "toy/reach", "discrete")]
)
def test_rows_that_no_task_is_for_are_refused_with_what_they_are_for(rows: str, tasks: str, kind: str) -> None:
    grid = select(experiment("baselines"), rows)
    with pytest.raises(InputError) as raised:
        jobs(grid, suite(tasks), 1, Path("runs"))
    assert str(raised.value) == (f"suite: no row of 'baselines' is for these tasks; allowed: tasks with {kind} actions")


@pytest.mark.slow
def test_the_list_names_every_experiment_and_what_it_needs_beyond_the_sweep() -> None:
    text = experiments_text()
    assert all(f"{name} " in text for name in EXPERIMENTS)
    assert "probes every finished run: playvirtual probe RUN dynamics" in text
    assert "needs runs that had the machine to themselves (--workers 1)" in text
    assert "not built" not in text


@pytest.mark.slow
def test_the_list_counts_what_is_run_suite_by_suite() -> None:
    text = experiments_text()
    # Both schemes at K = 0 are one setting, and K = 5 is Atari's alone; M is counted in actions on one suite only.
    assert "(Table 4): 10 settings on atari100k; 9 settings on dmc100k\n" in text
    assert "(Table 7): 4 settings on atari100k; 5 settings on dmc100k\n" in text


def test_frozen_encoders_are_those_of_the_same_task_and_seed() -> None:
    found = jobs(experiment("frozen-encoder"), suite("toy"), 2, Path("runs"))
    folders = ["rl", "spr", "playvirtual", "rl-encoder_fromspr", "rl-encoder_fromplayvirtual"]
    assert [job.path.parent.name for job in found[:5]] == folders
    second = [job for job in found if job.after is not None]
    assert len(second) == 8
    for job in second:
        assert job.after in {other.path for other in found}
        assert job.after.parent.parent == job.path.parent.parent  # the task
        assert job.after.name == job.path.name  # the seed
        assert job.config.encoder_from == str(job.after.resolve())
    only = select(experiment("frozen-encoder"), "PlayVirtual Encoder")
    assert [row.label for row in only.rows] == ["PlayVirtual", "PlayVirtual Encoder"]


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ("SPR, K = 3", ["SPR, K = 3"]),
        ("SPR, K = 3;", ["SPR, K = 3"]),
        ("SPR, K = 3; SPR, K = 6", ["SPR, K = 3", "SPR, K = 6"]),
        ("rl,", ["SPR, K = 0", "PlayVirtual, K = 0"]),
    ],
)
def test_rows_are_named_by_labels_with_commas_too(rows: str, labels: list[str]) -> None:
    assert [row.label for row in select(experiment("ablation-k"), rows).rows] == labels


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'ablation-k'"):
        load("ablatoin-k")
    with pytest.raises(InputError, match="did you mean 'minatar'"):
        suite("minatr")
    with pytest.raises(InputError, match="did you mean 'atari/pong'"):
        suite("atari/pomg")
    with pytest.raises(InputError, match="did you mean 'spr'"):
        select(experiment("toy"), "sprr")
    with pytest.raises(InputError, match="rows: ' ;' names none; allowed: labels or methods of toy"):
        select(experiment("toy"), " ;")
    with pytest.raises(InputError, match="seeds: 0 is not allowed"):
        jobs(experiment("toy"), suite("toy"), 0, Path("runs"))
    with pytest.raises(InputError, match="option: 'KK' is not known"):
        jobs(experiment("toy"), suite("toy"), 1, Path("runs"), options={"KK": 1})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_is_of_the_size_that_was_planned_whatever_device_it_finds(device: str) -> None:
    """A cluster's nodes have GPUs or not, whatever the one has where the sweep is planned."""
    grid = Experiment("own", "Own", "", (Row("rl", "rl"),), ())
    (job,) = jobs(grid, suite("gym/CartPole-v1"), 1, Path("out"), options={"device": device})
    given = {name: value for name, value in job.arguments().items() if name not in ("run_dir", "device")}
    for found in ("cpu", "cuda"):
        config = pv.configure(**given, device=found)
        assert (config.size, config.steps) == (job.config.size, job.config.steps)
        assert differences(config, job.config) == []
