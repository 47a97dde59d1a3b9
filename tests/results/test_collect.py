"""What is gathered from the published runs is what lies beside them."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

import playvirtual as pv
from playvirtual.config.record import to_dict
from playvirtual.study.report.report import report
from tests.study.untrained import write_run

RESULTS = Path(__file__).parents[2] / "results"
if not RESULTS.exists():
    pytest.skip("results/ is not here", allow_module_level=True)

COLLECT = runpy.run_path(str(RESULTS / "collect.py"))


@pytest.mark.parametrize("family", sorted(file.parent.name for file in RESULTS.glob("*/provenance.toml")))
def test_the_episodes_and_scores_of_a_family_are_up_to_date(family: str, tmp_path: Path) -> None:
    runs = COLLECT["complete_runs"](RESULTS / family)
    COLLECT["write_returns"](runs, tmp_path / "returns.csv")
    assert (tmp_path / "returns.csv").read_text() == (RESULTS / family / "returns.csv").read_text()
    page = (RESULTS.parent / "docs" / "results.md").read_text(encoding="utf-8")
    assert COLLECT["fill"](page, family, COLLECT["score_table"](runs)) == page


@pytest.mark.parametrize("family", COLLECT["BENCHMARKS"])
@pytest.mark.parametrize("name", COLLECT["REPORTED"])
def test_the_reports_aggregates_and_comparisons_stand_on_the_page(family: str, name: str) -> None:
    page = (RESULTS.parent / "docs" / "results.md").read_text(encoding="utf-8")
    table = COLLECT["reported_table"](family, name)
    assert "| playvirtual" in table
    assert f"<!-- {family}-{name} -->\n{table}\n<!-- end -->" in page, "run python results/collect.py"


def test_the_opening_table_of_readme_and_site_is_up_to_date() -> None:
    runs = [run for family in COLLECT["BENCHMARKS"] for run in COLLECT["complete_runs"](RESULTS / family)]
    table = COLLECT["headline_table"](runs)
    assert {"pong", "reacher-easy"} <= set(table.replace("|", " ").split())
    for page in COLLECT["OPENINGS"]:
        text = page.read_text(encoding="utf-8")
        assert table in text, f"{page}: run python results/collect.py"


@pytest.mark.parametrize(
    ("task", "method", "paper"),
    [
        ("atari/qbert", "der", "1,153"),
        ("atari/qbert", "otr", "509.3"),
        ("atari/qbert", "curl", "1,042"),
        ("atari/qbert", "drq", "854.4"),
        ("atari/qbert", "curl-virtual", "—"),
        ("dmc/reacher-easy", "sac-ae", "274.0 ± 14.0"),
        ("dmc/reacher-easy", "curl", "538.0 ± 233.0"),
        ("dmc/reacher-easy", "drq", "601.0 ± 213.0"),
        ("dmc/reacher-easy", "drq-virtual", "—"),
    ],
)
def test_a_baseline_stands_beside_its_own_column(task: str, method: str, paper: str) -> None:
    """Without an option that differs, as the report needs it: the published numbers are those of the defaults."""
    config = to_dict(pv.build(task, method=method, preset="paper", seed=1))
    run = COLLECT["CompleteRun"](config, [{"step": 100_000, "returns": [3.0, 5.0]}], 60.0, "abc1234")
    *_, line = COLLECT["score_table"]([run]).splitlines()
    name, line = task.partition("/")[2], line.replace("\N{NO-BREAK SPACE}", " ")
    assert line == f"| {name} | `{method}` | paper | 1 | 4.00 ± 1.00 | {paper} | 1.0 | abc1234 |"


@pytest.mark.parametrize(
    ("task", "options", "paper"),
    [
        ("atari/qbert", {"precision": "tf32"}, "3,620 ± 952.6"),
        ("atari/qbert", {"K": 3}, "—"),
        ("dmc/reacher-easy", {"M": "1"}, "—"),
        ("dmc/reacher-easy", {"steps": 500_000}, "942.0 ± 66.0"),
    ],
)
def test_a_run_of_other_settings_stands_beside_no_score_of_the_paper(
    task: str, options: dict[str, object], paper: str
) -> None:
    """The published scores of playvirtual are of its own K and M."""
    config = to_dict(pv.build(task, method="playvirtual", preset="paper", seed=1, **options))
    run = COLLECT["CompleteRun"](config, [{"step": config["steps"], "returns": [3.0, 5.0]}], 60.0, "abc1234")
    *_, line = COLLECT["score_table"]([run]).splitlines()
    assert line.split(" | ")[5] == paper.replace(" ", "\N{NO-BREAK SPACE}")  # a narrow column does not break it


def test_a_report_of_other_runs_is_refused(tmp_path: Path) -> None:
    """The page would have the new run in its table of scores and the aggregates without it."""
    family = tmp_path / "dmc"
    for method, score in (("spr", 300.0), ("playvirtual", 400.0)):
        write_run(family / "runs" / method, "dmc/cheetah-run", method, 1, score)
    with pytest.raises(SystemExit, match=r"dmc-aggregates\.md: not of the runs in "):
        COLLECT["check_report"](family)
    report([family / "runs"], family / "report")
    COLLECT["check_report"](family)
    for method, score in (("spr", 400.0), ("playvirtual", 300.0)):
        write_run(family / "runs" / f"{method}-2", "dmc/cheetah-run", method, 2, score)
    with pytest.raises(SystemExit, match=r"dmc-aggregates\.md: not of the runs in "):
        COLLECT["check_report"](family)


def test_a_run_without_a_known_commit_is_named(tmp_path: Path) -> None:
    run = next((RESULTS / "atari" / "runs").glob("*/*/*"))
    copy = tmp_path / "runs" / "atari-pong" / "playvirtual" / "seed-1"
    copy.mkdir(parents=True)
    for file in run.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (tmp_path / "provenance.toml").write_text('[[group]]\nruns = ["runs/other"]\ncommit = "abc1234"\n')
    with pytest.raises(SystemExit, match=r"seed-1: .*provenance\.toml does not name it"):
        COLLECT["complete_runs"](tmp_path)
    (copy / "evaluations.jsonl").write_text("")
    with pytest.raises(SystemExit, match="seed-1: not complete"):
        COLLECT["complete_runs"](tmp_path)


@pytest.mark.parametrize(
    ("name", "said"), [("evaluations", r"evaluations\.jsonl: lines \[1\]"), ("timing", "timing.jsonl")]
)
def test_a_run_with_damaged_logs_is_refused(name: str, said: str, tmp_path: Path) -> None:
    """Its damaged evaluations were left out of the published episodes without a word."""
    source = next((RESULTS / "minatar" / "runs").glob("*/*/seed-1"))
    run = tmp_path / "minatar" / "runs" / source.parent.name / "seed-1"
    shutil.copytree(source, run)
    (tmp_path / "minatar" / "provenance.toml").write_text('[[group]]\nruns = ["runs/*/*"]\ncommit = "abc1234"\n')
    assert len(COLLECT["complete_runs"](tmp_path / "minatar")) == 1
    lines = (run / f"{name}.jsonl").read_text().splitlines(keepends=True)
    (run / f"{name}.jsonl").write_text("".join(["{\n", *lines[1:]]) if name == "evaluations" else "")
    with pytest.raises(SystemExit, match=said):
        COLLECT["complete_runs"](tmp_path / "minatar")
