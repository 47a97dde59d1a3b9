"""The paper's numbers as data, typed and read-only. Scores are raw; `hns` alone computes anything."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from playvirtual.errors import unknown

ATARI_METHODS = ("simple", "der", "otr", "curl", "drq", "spr", "playvirtual")
DMC_BUDGETS = (100_000, 500_000)  # environment steps

Table = Mapping[str, Mapping[str, float]]  # method → task → number


class Ablation(NamedTuple):
    """One row of an ablation table; the number of a suite that the paper did not run is None."""

    study: str
    setting: str
    atari100k_median_hns_pct: float | None
    dmc100k_median_score: float | None
    atari100k_note: str = ""  # what to know of the number: where the paper contradicts itself, or prints no table
    dmc100k_note: str = ""

    def value(self, family: str) -> float | None:
        """The number of the benchmark of this family, atari or dmc."""
        return {"atari": self.atari100k_median_hns_pct, "dmc": self.dmc100k_median_score}[family]

    def note(self, family: str) -> str:
        """What to know of that number."""
        return {"atari": self.atari100k_note, "dmc": self.dmc100k_note}[family]


class Analysis(NamedTuple):
    """One number of the paper's analyses (dynamics error, frozen encoders, parameters, time)."""

    analysis: str
    task: str
    method: str
    value: float
    std: float | None
    note: str = ""  # what the paper's run had and the preset `paper` has not


class Label(NamedTuple):
    """A table, figure or algorithm of the paper."""

    label: str  # in its source
    number: str  # as printed
    title: str


@cache
def human() -> Mapping[str, float]:
    """Game → score of the human player."""
    return _atari_column("human")


@cache
def random() -> Mapping[str, float]:
    """Game → score of random play."""
    return _atari_column("random")


def hns(game: str, score: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The human-normalised score, shaped like `score`: 0 is random play, 1 the human player."""
    if game not in human():
        raise unknown("game", game, human())
    return (np.asarray(score, dtype=np.float64) - random()[game]) / (human()[game] - random()[game])


@cache
def atari_scores() -> Table:
    """Method → game → mean score after 100k agent steps."""
    return MappingProxyType({method: _atari_column(method) for method in ATARI_METHODS})


@cache
def atari_stds() -> Table:
    """Method → game → standard deviation over runs; `spr_rerun` is SPR as the paper's authors ran it."""
    return MappingProxyType({name: _atari_column(f"std_{name}") for name in ("spr_rerun", "playvirtual")})


@cache
def dmc_scores(env_steps: int) -> Table:
    """Method → task → mean score after `env_steps` environment steps; `slac` lacks some tasks."""
    return _dmc_column(env_steps, "mean")


@cache
def dmc_stds(env_steps: int) -> Table:
    """Method → task → standard deviation over runs after `env_steps` environment steps."""
    return _dmc_column(env_steps, "std")


@cache
def ablations() -> tuple[Ablation, ...]:
    """Every row of the ablation tables, and what the text adds to them, in the paper's order."""
    return tuple(
        Ablation(
            row["study"],
            row["setting"],
            _number(row["atari100k_median_hns_pct"]),
            _number(row["dmc100k_median_score"]),
            row["atari100k_note"],
            row["dmc100k_note"],
        )
        for row in _rows("ablations.csv")
    )


@cache
def analyses() -> tuple[Analysis, ...]:
    """Every number of the paper's analyses, in its order."""
    return tuple(
        Analysis(row["analysis"], row["task"], row["method"], float(row["value"]), _number(row["std"]), row["note"])
        for row in _rows("analyses.csv")
    )


@cache
def labels() -> tuple[Label, ...]:
    """Every table, figure and algorithm of the paper, in its order."""
    return tuple(Label(**row) for row in _rows("labels.csv"))


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _atari_column(column: str) -> Mapping[str, float]:
    return MappingProxyType({row["game"]: float(row[column]) for row in _rows("atari100k.csv")})


def _dmc_column(env_steps: int, column: str) -> Table:
    if env_steps not in DMC_BUDGETS:
        raise unknown("env_steps", str(env_steps), map(str, DMC_BUDGETS))
    table: dict[str, dict[str, float]] = {}
    for row in _rows("dmcontrol.csv"):
        if int(row["env_steps"]) == env_steps:
            table.setdefault(row["method"], {})[row["task"]] = float(row[column])
    return MappingProxyType({method: MappingProxyType(tasks) for method, tasks in table.items()})
