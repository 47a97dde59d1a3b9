"""What is measured of gradients in fewer digits is what float64 says of them."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import playvirtual as pv

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
if not SCRIPTS.exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


def test_rows_compare_batch_by_batch_and_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    rows = runpy.run_path(str(SCRIPTS / "gradient_noise.py"))["rows"]

    def gradients(*vectors: list[float]) -> list[dict[tuple[str, str], torch.Tensor]]:
        return [{("cyc", "encoder"): torch.tensor(vector)} for vector in vectors]

    # Both batches are off by a right angle of the gradient's own length, in opposite directions.
    (row,) = rows(7, gradients([2.0, 0.0], [2.0, 0.0]), gradients([2.0, 2.0], [2.0, -2.0]), "bf16")
    assert (row["step"], row["loss"], row["part"], row["precision"]) == (7, "cyc", "encoder", "bf16")
    found = [float(row[name]) for name in ("norm", "error", "cosine", "batches", "mean cosine")]
    assert found == pytest.approx([2.0, 1.0, 0.5**0.5, 1.0, 1.0], abs=1e-3)


@pytest.mark.slow  # 10 s
@pytest.mark.parametrize(
    ("task", "options", "losses"),
    [
        ("toy/catch", {"latent": 0, "K": 2, "M": "1"}, {"rl", "pred", "cyc"}),
        ("toy/reach", {"K": 2, "M": "1"}, {"pred", "cyc"}),
    ],
)
def test_a_checkpoint_has_exact_gradients_in_fp32_and_rounded_ones_in_bf16(
    task: str, options: dict[str, Any], losses: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, out = tmp_path / "run", tmp_path / "noise.csv"
    pv.train(task, steps=240, learning_starts=200, eval_episodes=1, run_dir=run_dir, device="cpu", **options)
    monkeypatch.syspath_prepend(SCRIPTS)
    words = ["gradient_noise.py", str(run_dir), "--batches", "2", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / "gradient_noise.py"), run_name="__main__")
    assert not ended.value.code
    rows = list(csv.DictReader(out.open()))
    assert {row["loss"] for row in rows} == losses
    assert {row["step"] for row in rows} == {"240"}
    errors = {(r["precision"], r["loss"], r["part"]): float(r["error"]) for r in rows}
    assert {precision for precision, _, _ in errors} == {"fp32", "bf16"}
    # Other batches or random numbers would have little in common, an error of 1 or so. How far float32 is from float64
    # depends on the CPU: a few steps after the first update all states look alike, and the cycle loss is tiny.
    for (precision, loss, part), error in errors.items():
        if precision == "fp32":
            assert error < 0.03, (loss, part)
            assert errors["bf16", loss, part] > 3 * error, (loss, part)
