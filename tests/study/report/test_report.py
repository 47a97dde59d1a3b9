"""Reports of synthetic runs: many, one, hostile, mixed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest

import playvirtual as pv
from playvirtual.cli.main import main
from playvirtual.study.report.page import Page
from playvirtual.study.report.records import collect
from playvirtual.study.report.report import report
from playvirtual.study.report.sections import sections
from playvirtual.study.report.tables.table import Table
from tests.study.chromium import needs_chromium, open_page
from tests.study.untrained import write_run

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"


def synthetic_runs(root: Path, count: int) -> None:
    scripts = str(Path(__file__).parents[3] / "benchmarks")
    sys.path.insert(0, scripts)  # as `python benchmarks/report_scale.py` has it
    try:
        import_module("report_scale").synthetic_runs(root, count)
    finally:
        sys.path.remove(scripts)


def test_one_run_is_enough(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "atari/pong", "playvirtual", 1, -3.0)
    written = report([tmp_path / "run"], tmp_path / "out")
    assert written.summary == "1 finished run of 1 task"
    assert "no run of 25 of the suite's tasks" in unescape(written.page.read_text())  # not escaped twice
    csv = (tmp_path / "out" / "tables" / "atari-scores.csv").read_text().splitlines()
    assert csv[0] == 'task,random,human,"SPR, paper","PlayVirtual, paper",playvirtual'
    assert csv[1] == "pong,-20.7,14.6,-5.90,−3.00 ± 13.2,−3.00 (1)"
    assert "pong,50.1" in (tmp_path / "out" / "tables" / "atari-hns.csv").read_text()


@pytest.mark.slow
@pytest.mark.long
def test_a_hundred_runs(tmp_path: Path) -> None:
    synthetic_runs(tmp_path / "runs", 100)
    written = report([tmp_path / "runs"], tmp_path / "out")
    assert written.summary == "100 finished runs of 29 tasks"
    page = written.page.read_text()
    # 29 tasks × 4 methods want 116 runs: playvirtual-nd lacks some tasks and is left out of the aggregates.
    assert "Left out, because they lack some of these tasks: playvirtual-nd." in page
    assert "http://" not in page.replace("http://www.w3.org/", "")


def test_ablations_are_set_beside_the_papers_numbers(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"a{seed}", "dmc/cheetah-run", "spr", seed, 400.0)
        write_run(tmp_path / f"b{seed}", "dmc/cheetah-run", "playvirtual", seed, 500.0)
        write_run(tmp_path / f"c{seed}", "dmc/cheetah-run", "playvirtual", seed, 450.0, K=3)
    report([tmp_path], tmp_path / "out")
    rows = (tmp_path / "out" / "tables" / "ablation-ablation-k.csv").read_text().splitlines()
    assert rows[0] == 'setting,"DMControl-100k, median score",tasks × runs,paper'
    assert '"SPR, K = 6",400.0,1 × 2,723.0' in rows
    assert '"PlayVirtual, K = 3",450.0,1 × 2,775.5' in rows
    assert '"PlayVirtual, K = 6",500.0,1 × 2,797.0' in rows
    assert not (tmp_path / "out" / "tables" / "ablation-warmup.csv").exists()


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ({"precision": "tf32", "eval_episodes": 5, "eval_every": 10_000}, ""),
        ({"precision": "tf32", "discount": 0.9, "eval_epsilon": 0.1}, "discount = 0.9, eval_epsilon = 0.1"),
    ],
)
def test_what_all_runs_share_hides_no_number_of_the_paper(tmp_path: Path, shared: dict[str, object], said: str) -> None:
    for n, (method, own) in enumerate([("spr", {}), ("playvirtual", {}), ("playvirtual", {"K": 3}), ("rl", {})]):
        run = tmp_path / "runs" / str(n)
        write_run(run, "dmc/cheetah-run", method, 1, 400.0, **shared, **own)
        (run / "probes.json").write_text(json.dumps({"dynamics": {"step": 100_000, "mse": 0.07}}))
    write_run(tmp_path / "runs" / "f", "dmc/cheetah-run", "rl", 1, 450.0, encoder_from="runs/spr/seed-1", **shared)
    write_run(tmp_path / "runs" / "r", "dmc/cheetah-run", "spr", 1, 400.0, preset="reference", **shared)
    (tmp_path / "runs" / "r" / "probes.json").write_text(json.dumps({"dynamics": {"step": 100_000, "mse": 0.07}}))
    report([tmp_path], tmp_path / "out")
    tables = {path.stem: path.read_text() for path in (tmp_path / "out" / "tables").glob("*.md")}
    assert "| 723.0 |" in tables["ablation-ablation-k"]
    assert "| 0.0731 |" in tables["dynamics-mse"]
    assert "| 478.0 ± 30.0 |" in tables["frozen-encoder"]
    assert "PlayVirtual, paper" in tables["dmc-scores"]
    sentence = f"Unlike the paper's, all runs of DMControl-100k here have {said}."
    for name in ("ablation-ablation-k", "dynamics-mse", "frozen-encoder", "dmc-scores", "dmc-aggregates"):
        assert (sentence in tables[name]) == bool(said), name
        assert ("Unlike" in tables[name]) == bool(said), name


@pytest.mark.slow
def test_a_report_needs_neither_the_sweep_nor_its_terminal() -> None:
    code = "import sys, playvirtual.study.report.report; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "playvirtual.study.report.page" in loaded
    assert not {"playvirtual.study.sweep.sweep", "playvirtual.study.sweep.display", "rich"} & set(loaded)


def two_presets(root: Path, seeds: int = 2) -> None:
    """Of preset paper SPR and PlayVirtual, of preset reference PlayVirtual-ND and PlayVirtual, so many seeds each."""
    for seed in range(1, seeds + 1):
        for preset, method, score in [
            ("paper", "spr", 400.0),
            ("paper", "playvirtual", 500.0),
            ("reference", "playvirtual-nd", 600.0),
            ("reference", "playvirtual", 700.0),
        ]:
            write_run(root / f"{preset}-{method}-{seed}", "dmc/cheetah-run", method, seed, score, preset=preset)


@pytest.mark.slow
def test_an_ablation_never_mixes_presets(tmp_path: Path) -> None:
    two_presets(tmp_path)
    report([tmp_path], tmp_path / "out")
    tables = tmp_path / "out" / "tables"
    assert not (tables / "ablation-no-dm-update.csv").exists()  # the paper's preset has no PlayVirtual-ND
    rows = (tables / "ablation-no-dm-update-reference.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [
        ["Baseline", "—"],
        ["PlayVirtual-ND", "600.0"],
        ["PlayVirtual", "700.0"],
    ]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "The cycle loss with and without training the dynamics model (preset reference)" in page


@pytest.mark.slow
def test_every_preset_has_an_ablation_table_of_its_own(tmp_path: Path) -> None:
    two_presets(tmp_path)
    for seed in (1, 2):
        write_run(tmp_path / f"nd-{seed}", "dmc/cheetah-run", "playvirtual-nd", seed, 450.0)
    report([tmp_path], tmp_path / "out")
    tables = tmp_path / "out" / "tables"
    paper = (tables / "ablation-no-dm-update.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in paper[1:]] == ["400.0", "450.0", "500.0"]
    reference = (tables / "ablation-no-dm-update-reference.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in reference[1:]] == ["—", "600.0", "700.0"]
    page = (tmp_path / "out" / "index.html").read_text()
    title = "The cycle loss with and without training the dynamics model"
    assert [page.count(f"{title} (preset {name})") for name in ("paper", "reference")] == [1, 1]


@pytest.mark.slow
def test_an_ablation_of_a_part_of_the_suite_says_that_the_papers_is_of_the_whole(tmp_path: Path) -> None:
    said = "The paper's numbers are over all 6 tasks of DMControl-100k."
    suite = ("finger-spin", "cartpole-swingup", "reacher-easy", "cheetah-run", "walker-walk", "ball_in_cup-catch")
    for method in ("spr", "playvirtual-nd", "playvirtual"):
        for task in suite[:-1] if method == "playvirtual-nd" else suite:
            write_run(tmp_path / "runs" / f"{method}-{task}", f"dmc/{task}", method, 1, 400.0)
    table = tmp_path / "out" / "tables" / "ablation-no-dm-update.md"
    report([tmp_path / "runs"], tmp_path / "out")
    assert said in table.read_text()
    write_run(tmp_path / "runs" / "whole", f"dmc/{suite[-1]}", "playvirtual-nd", 1, 400.0)
    report([tmp_path / "runs"], tmp_path / "out")
    assert "The paper's numbers" not in table.read_text()


@pytest.mark.slow
def test_one_preset_alone_is_named_only_where_it_is_not_the_default(tmp_path: Path) -> None:
    for preset in ("paper", "reference"):
        for method in ("spr", "playvirtual", "playvirtual-nd"):
            write_run(tmp_path / preset / method, "dmc/cheetah-run", method, 1, 500.0, preset=preset)
    title = "The cycle loss with and without training the dynamics model"
    default = report([tmp_path / "paper"], tmp_path / "a").page.read_text()
    assert title in default
    assert f"{title} (" not in default
    assert f"{title} (preset reference)" in report([tmp_path / "reference"], tmp_path / "b").page.read_text()


@pytest.mark.slow
def test_methods_are_compared_within_a_preset_and_presets_within_a_method(tmp_path: Path) -> None:
    two_presets(tmp_path, seeds=4)  # fewer could not tell
    write_run(tmp_path / "s", "dmc/cheetah-run", "spr", 1, 650.0, preset="reference")
    page = report([tmp_path], tmp_path / "out").page.read_text()
    rows = (tmp_path / "out" / "tables" / "dmc-improvement.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [
        "playvirtual over spr",
        "playvirtual (reference) over spr (reference)",
        "playvirtual-nd (reference) over spr (reference)",
        "playvirtual-nd (reference) over playvirtual (reference)",
        "playvirtual (reference) over playvirtual",
        "spr (reference) over spr",
    ]
    assert "DMControl-100k: playvirtual is better than spr;" in page
    assert "playvirtual is better than spr (reference)" not in page


@pytest.mark.slow
def test_time_is_divided_by_that_of_spr_under_the_same_preset(tmp_path: Path) -> None:
    two_presets(tmp_path)
    write_run(tmp_path / "s", "dmc/cheetah-run", "spr", 1, 650.0, preset="reference")
    (tmp_path / "s" / "timing.jsonl").write_text('{"step": 100000, "seconds": 30.0}\n')
    report([tmp_path], tmp_path / "out")
    rows = (tmp_path / "out" / "tables" / "dmc-time.csv").read_text().splitlines()
    ratios = {row.split(",")[0]: tuple(row.split(",")[-3:-1]) for row in rows}
    assert ratios == {
        "setting": ("time / spr", "paper"),
        "spr": ("1.00", "—"),
        "spr (reference)": ("1.00", "—"),
        "playvirtual": ("1.00", "1.12"),
        "playvirtual (reference)": ("2.00", "1.12"),
        "playvirtual-nd (reference)": ("2.00", "—"),
    }


def test_mixed_configurations_are_kept_apart_and_duplicates_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "toy/catch", "spr", 1, 0.1)
    write_run(tmp_path / "b", "toy/catch", "spr", 1, 0.2, learning_rate=0.5)
    write_run(tmp_path / "c", "toy/catch", "spr", 1, 0.3)
    records, problems = collect([tmp_path])
    assert [record.path.name for record in records] == ["a", "b"]
    assert [(p.path.name, "the same task, setting and seed" in p.reason) for p in problems] == [("c", True)]
    (section,) = sections(records)
    assert [setting.name for setting in section.runs] == ["spr", "spr, learning_rate = 0.5"]


def test_of_duplicates_the_one_that_got_furthest_is_reported(tmp_path: Path) -> None:
    for name, score in (("a-begun", 0.1), ("b-further", 0.2), ("c-finished", 0.3), ("d-finished", 0.4)):
        write_run(tmp_path / "runs" / name, "toy/catch", "spr", 1, score)
    for name, step in (("a-begun", 10), ("b-further", 20)):
        line = {"step": step, "mean": 0.9, "returns": [0.9]}
        (tmp_path / "runs" / name / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    assert [record.path.name for record in collect([tmp_path / "runs"])[0]] == ["c-finished"]
    begun = [tmp_path / "runs" / name for name in ("a-begun", "b-further")]
    assert [record.path.name for record in collect(begun)[0]] == ["b-further"]
    written = report([tmp_path / "runs"], tmp_path / "out")
    assert written.summary == "1 finished run of 1 task, 3 duplicates left out"
    page = written.page.read_text()
    assert "left out: the same task, setting and seed as" in page
    assert "Runs that are there twice (3)" in page
    assert "Folders that cannot be used" not in page
    assert "Incomplete" not in page


def test_a_damaged_line_is_named_and_the_rest_of_the_run_counts(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / "runs" / str(seed), "toy/catch", "spr", seed, 0.5)
    evaluations = [tmp_path / "runs" / str(seed) / "evaluations.jsonl" for seed in (1, 2, 3)]
    whole = evaluations[0].read_bytes()
    evaluations[0].write_bytes(b'{"step": 1}\n' + whole + b"\xff\x00\n")
    evaluations[1].write_bytes(whole + b'{"step": 9, "me')  # cut off, as a run is that was killed while it wrote
    (tmp_path / "runs" / "3" / "timing.jsonl").write_text("5\n")
    written = report([tmp_path / "runs"], tmp_path / "out")
    assert written.summary == "3 finished runs of 1 task, 2 damaged files"
    page = written.page.read_text()
    assert "Damaged files of runs that are used (2)" in page
    assert "runs/1</code>: evaluations.jsonl: not a record and left out: lines 1, 3" in page
    assert "runs/3</code>: timing.jsonl: not a record and left out: line 1" in page
    assert "Incomplete: 3 finished runs" in page


def test_every_table_and_plot_can_be_scrolled_in_its_own_box(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "toy/catch", "spr", 1, 0.1)
    write_run(tmp_path / "b", "toy/catch", "playvirtual", 1, 0.2)
    page = report([tmp_path], tmp_path / "out").page.read_text()
    for element in ("<table", "<svg"):
        assert page.count(element) == page.count(f'<div class="scroll">{element}') > 0
    assert "no-repeat local" in page  # the shade at the edge, which a script-free page can only have from its style


def hostile_runs(root: Path) -> None:
    write_run(root / HOSTILE.replace("/", "∕"), "toy/catch", "spr", 1, 0.5)
    write_run(root / "b", "toy/catch", "playvirtual", 1, 0.6)
    for number, (field, value) in enumerate([("task", f"toy/{HOSTILE}"), ("method", HOSTILE), ("seed", HOSTILE)]):
        write_run(root / f"bad-{number}", "toy/catch", "rl", 1, 0.5)
        file = root / f"bad-{number}" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    file = root / "b" / "config.json"
    config = json.loads(file.read_text())
    config["versions"] = {HOSTILE: HOSTILE}
    config["objective"]["M"] = HOSTILE
    file.write_text(json.dumps(config))
    (root / "b" / "videos").mkdir()
    (root / "b" / "videos" / 'javascript:alert(1)".mp4').write_bytes(b"")


def test_a_second_report_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "toy/catch", "spr", 1, 0.5)
    write_run(tmp_path / "b", "minatar/breakout", "spr", 1, 0.5)
    for runs in ("a", "b"):
        report([tmp_path / runs], tmp_path / "out")
        (tmp_path / "out" / "tables" / "notes.txt").write_text("a reader's own")
    names = [path.name for folder in ("tables", "plots") for path in (tmp_path / "out" / folder).iterdir()]
    assert [name for name in names if name.startswith("toy")] == []
    assert [name for name in names if name.startswith("minatar")]
    assert "notes.txt" in names


def test_one_run_each_is_called_too_few(tmp_path: Path) -> None:
    for method, score in (("spr", 0.2), ("playvirtual", 0.8)):
        write_run(tmp_path / "runs" / method, "toy/catch", method, 1, score)
    page = report([tmp_path / "runs"], tmp_path / "out").page.read_text()
    assert "Toys: one run of a task is too few to tell playvirtual and spr apart." in page
    assert "95 %" not in page, "an interval is named where there is none"
    assert "Toys: aggregates. One run of a task leaves no interval." in page
    for method, score in (("spr", 0.3), ("playvirtual", 0.9)):
        write_run(tmp_path / "runs" / f"{method}-2", "toy/catch", method, 2, score)
    page = report([tmp_path / "runs"], tmp_path / "out").page.read_text()
    assert "Toys: aggregates with 95 % stratified bootstrap intervals." in page
    assert "In brackets: 95 % stratified bootstrap intervals" in page
    assert "the share of runs above each score, with 95 % bands." in page
    assert "Probability of improvement with 95 % intervals; " in page
    assert "leaves no interval" not in page


def test_the_command_says_why_a_folder_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, "toy/catch", "spr", 1, 0.2)
        config = tmp_path / name / "config.json"
        config.write_text(config.read_text().replace("toy/catch", "mine/maze"))
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("0 finished runs of 0 tasks, 2 unusable folders\n")
    assert err.startswith(f"playvirtual: '{tmp_path}/a' cannot be used: task family: 'mine' is not known; ")
    assert err.endswith(" (1 more on the page)\n")
    assert err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="names there are text")
def test_a_folder_whose_name_is_no_text_is_reported(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/L\xe4ufe"))
    write_run(folder, "toy/catch", "spr", 1, 0.5)
    (folder / "videos").mkdir()
    (folder / "videos" / "one.mp4").touch()
    page = report([folder], tmp_path / "out").page.read_text()
    assert "L%E4ufe" in page


def test_an_export_among_runs_is_no_run(tmp_path: Path, runs: dict[str, Path]) -> None:
    shutil.copytree(runs["toy/catch"], tmp_path / "runs" / "one")
    pv.export(runs["toy/catch"], tmp_path / "runs" / "export")
    records, problems = collect([tmp_path / "runs"])
    assert ([record.path.name for record in records], problems) == (["one"], [])


def test_what_comes_from_a_run_folder_is_text_and_never_markup(tmp_path: Path) -> None:
    hostile_runs(tmp_path / "runs")
    written = report([tmp_path / "runs"], tmp_path / "out", title=HOSTILE)
    page = written.page.read_text()
    assert "3 unusable folders" in written.summary
    assert "<script" not in page
    assert "<img" not in page
    assert 'href="javascript:' not in page
    assert "&lt;script&gt;" in page


@pytest.mark.slow
@needs_chromium
def test_a_browser_runs_nothing_of_a_hostile_report(tmp_path: Path) -> None:
    hostile_runs(tmp_path / "runs")
    written = report([tmp_path / "runs"], tmp_path / "out")
    dom, console = open_page(written.page, tmp_path / "profile")
    assert console == []
    assert "<title>Study report</title>" in dom


def test_tables_escape_for_each_language(tmp_path: Path) -> None:
    table = Table("t", "A & B", ("x", "50 %"), [("a|b_c", "=1+1")], strong={(0, 1)}, quiet={1})
    page = Page(tmp_path)
    page.table(table)
    html = page.write("<title>", {"runs": "1"}, "").read_text()
    assert "A &amp; B" in html
    assert '<td class="quiet"><b>=1+1</b></td>' in html
    assert "<h1>&lt;title&gt;</h1>" in html
    assert table.csv() == "x,50 %\na|b_c,'=1+1\n"
    assert Table("t", "", ("x",), [("−0.2",), ("−0.2 (1)",), ("-x",)]).csv() == "x\n-0.2\n−0.2 (1)\n'-x\n"
    assert "a\\|b_c | **=1+1**" in table.markdown()
    assert r"a|b\_c & \textbf{=1+1}" in table.latex()
    assert r"\caption{A \& B}" in table.latex()
