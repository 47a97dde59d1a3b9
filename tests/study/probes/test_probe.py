"""What probes say and keep, and what the report makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from playvirtual.cli.main import main
from playvirtual.config.build import build
from playvirtual.errors import InputError
from playvirtual.runs import checkpoint
from playvirtual.study.probes.probe import beside_paper, probe
from playvirtual.study.report.records import read
from playvirtual.study.report.report import report
from tests.study.untrained import write_run
from tests.training.damage import replace

FROZEN = ("frozen-encoder", "frozen-encoder-reference")


def test_the_command_prints_and_keeps_what_the_report_shows(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs["toy/reach"]
    assert main(["probe", str(run), "dynamics", "--transitions", "40", "--device", "cpu"]) == 0
    assert main(["probe", str(run), "complexity"]) == 0
    out = capsys.readouterr().out
    kept = json.loads((run / "probes.json").read_text())
    assert f"mean squared error {kept['dynamics']['mse']:.4f} over 40 transitions (seed 1)" in out
    assert "paper: no number for spr on toy/reach" in out
    assert kept["dynamics"] == {"step": 80, "mse": read(run).dynamics_mse, "transitions": 40, "seed": 1}
    assert f"trainable parameters: {kept['complexity']['parameters']:,}" in out
    assert kept["complexity"]["seconds_per_1000_updates"] > 0
    report([run], tmp_path / "out")
    table = (tmp_path / "out" / "tables" / "dynamics-mse.csv").read_text().splitlines()
    assert table[1] == f'"toy/reach, 80 steps",spr,{kept["dynamics"]["mse"]:.4f},1,—'


def test_a_probe_is_of_the_checkpoint_that_was_read(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["toy/reach"], tmp_path / "run"))
    newest = checkpoint.newest(run)
    before = Path(shutil.copytree(newest, newest.with_name("step-000000060")))
    record = json.loads((before / "agent.json").read_text())
    replace(before / "agent.json", json.dumps({**record, "step": 60}).encode())
    (newest / "state.safetensors").write_bytes(b"damaged")
    probe(run, "dynamics", transitions=5, device="cpu")
    assert json.loads((run / "probes.json").read_text())["dynamics"]["step"] == 60
    assert read(run).dynamics_mse is None  # not the finished agent's


def test_a_probe_that_is_not_known_is_named(runs: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="'dynamic' is not known; did you mean 'dynamics'"):
        probe(runs["toy/catch"], "dynamic")


def test_the_papers_number_comes_with_what_is_different_here() -> None:
    def said(**options: object) -> str:
        config = build("dmc/cheetah-run", method="spr", **options)
        return beside_paper(config, "dynamics_mse", "cheetah-run", "{:.4f}")

    tanh = "  paper: 0.0731, there the encoder ends without a tanh, as in preset reference"
    assert said() == tanh
    assert said(K=3) == f"{tanh} (this run has K = 3)"
    assert said(preset="reference") == "  paper: 0.0731"
    assert said(preset="reference", K=3) == "  paper: 0.0731 (this run has K = 3)"
    pong = build("atari/pong", preset="reference")  # of no preset in particular
    assert beside_paper(pong, "parameters_millions", "pong", "{:.2f}") == (
        "  paper: 3.91 (this run has preset = reference)"
    )


@pytest.mark.slow
def test_the_report_sets_both_analyses_beside_the_paper(tmp_path: Path) -> None:
    for seed in (1, 2):
        for method, score in (("rl", 300.0), ("spr", 400.0), ("playvirtual", 500.0)):
            path = tmp_path / "runs" / method / f"seed-{seed}"
            write_run(path, "dmc/cheetah-run", method, seed, score, preset="reference")
            found = {"step": 100_000 if method == "spr" else 5_000, "mse": 0.07 + seed / 100}  # one is out of date
            (path / "probes.json").write_text(json.dumps({"dynamics": found}))
        spr = tmp_path / "paper" / "spr" / f"seed-{seed}"
        write_run(spr, "dmc/cheetah-run", "spr", seed, 400.0)
        (spr / "probes.json").write_text(json.dumps({"dynamics": {"step": 100_000, "mse": 0.02}}))
        write_run(tmp_path / "paper" / f"rl{seed}", "dmc/cheetah-run", "rl", seed, 300.0)
        write_run(tmp_path / f"f{seed}", "dmc/cheetah-run", "rl", seed, 450.0 + seed, encoder_from=str(spr))
    report([tmp_path], tmp_path / "out")
    rows = (tmp_path / "out" / "tables" / "dynamics-mse.csv").read_text().splitlines()
    assert rows[1:] == [
        "dmc/cheetah-run,spr,0.0200 ± 0.0000,2,—",  # its latent state has a tanh, the paper's has none
        "dmc/cheetah-run,spr (reference),0.0850 ± 0.0071,2,0.0731",
    ]
    rows = (tmp_path / "out" / "tables" / "frozen-encoder.csv").read_text().splitlines()
    assert rows[1] == "dmc/cheetah-run,none,300.0 ± 0.00,2,388.0 ± 89.0"
    assert rows[2] == "dmc/cheetah-run,spr,451.5 ± 0.71,2,478.0 ± 30.0"


@pytest.mark.slow
def test_scores_on_frozen_encoders_are_told_apart_by_preset(tmp_path: Path) -> None:
    for preset, pretrained, none, loaded in (
        ("paper", "spr", 300.0, 450.0),
        ("reference", "spr-reference", 200.0, 350.0),
    ):
        write_run(tmp_path / preset / "rl", "dmc/cheetah-run", "rl", 1, none, preset=preset)
        encoder = str(tmp_path / pretrained / "seed-1")
        write_run(tmp_path / preset / "f", "dmc/cheetah-run", "rl", 1, loaded, preset=preset, encoder_from=encoder)
    report([tmp_path], tmp_path / "out")
    tables = tmp_path / "out" / "tables"
    rows = {name: (tables / f"{name}.csv").read_text().splitlines()[1:] for name in FROZEN}
    assert rows["frozen-encoder"] == [
        "dmc/cheetah-run,none,300.0,1,388.0 ± 89.0",
        "dmc/cheetah-run,spr,450.0,1,478.0 ± 30.0",
    ]
    assert rows["frozen-encoder-reference"] == [
        "dmc/cheetah-run,none,200.0,1,388.0 ± 89.0",
        "dmc/cheetah-run,spr-reference,350.0,1,478.0 ± 30.0",
    ]
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(f"Scores on frozen encoders (preset {preset})" in page for preset in ("paper", "reference"))
