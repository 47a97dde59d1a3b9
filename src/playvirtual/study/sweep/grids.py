"""The runs that an experiment takes: grids from the paper, or from a TOML or Python file, as lists of jobs."""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from playvirtual import envs, files
from playvirtual.config.build import action_kind, assemble, method_changes, method_names
from playvirtual.config.record import to_dict
from playvirtual.config.schema import Config
from playvirtual.envs.arguments import as_texts
from playvirtual.errors import InputError, unknown
from playvirtual.study import grid_record
from playvirtual.study.settings import changes, flat, folder_name
from playvirtual.study.sweep.experiments import EXPERIMENTS, Experiment, Row, SuiteTask, experiment, suite

ROW_KEYS = ("label", "method", "options")
# What no option of a row may set, and where it is set instead.
SET_ELSEWHERE = {
    "task": "--suite",
    "method": "method = … beside the options",
    "preset": "--preset",
    "seed": "--seeds",
    "imports": "--import MODULE on the command line, as it executes the module",
}
REPEATED = {"imports": "--import", "env_args": "--env-arg"}  # options whose flag is given once for each value
MAX_SEEDS = 10_000  # a larger number is taken for a mistake


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its configuration and its run folder.

    Its work has one stage, or two where the experiment's table needs a probe of the trained agent.
    """

    label: str
    config: Config
    options: Mapping[str, Any]  # what differs in `config` from the defaults of its task, method and preset
    path: Path
    after: Path | None = None  # the run that must be finished first, since its encoder is loaded
    probe: str = ""  # that is taken of the finished run; "": none
    stage: Literal["train", "probe"] = "train"

    @property
    def title(self) -> str:
        title = f"{self.config.task}  {self.label}  seed {self.config.seed}"
        return title if self.stage == "train" else f"{title}  probe {self.probe}"

    @property
    def device(self) -> str:
        """The device that its work is done on."""
        return str(self.options.get("device", self.config.device))

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `playvirtual.train` that make this run."""
        c = self.config
        return {"task": c.task, "method": c.method, "preset": c.preset, "run_dir": str(self.path), **self.options}

    def command(self) -> list[str]:
        """The words after `playvirtual` that make this run, or take its probe, alone."""
        if self.stage == "probe":
            trusted = ["--trust-env"] if envs.executed_modules(self.config.task, self.config.imports) else []
            return ["probe", str(self.path), self.probe, f"--device={self.device}", *trusted]
        c = self.config
        words = ["train", c.task, "--method", c.method, "--preset", c.preset, "--run-dir", str(self.path)]
        for name, value in self.options.items():
            if name in REPEATED:
                words += [f"{REPEATED[name]}={item}" for item in value]
                continue
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"--{name.replace('_', '-')}={text}")
        return words


@cache
def load(name: str) -> Experiment:
    """The experiment of that name, or the grid in the TOML or Python file at that path, which is read once."""
    path = Path(name)
    if path.suffix == ".toml":
        return _experiment(path, _read_toml(path))
    if path.suffix == ".py":
        return _experiment(path, _run_python(path))
    if name not in EXPERIMENTS and files.kind(path, "experiment") is not None:
        raise InputError(f"experiment: {name!r} is a file of a kind not known; allowed: a .toml or .py file")
    return experiment(name)


def planned_jobs(
    experiment_name: str,
    *,
    rows: str | None,
    suite_names: str | None,
    seeds: int,
    out: Path,
    preset: str | None,
    options: Mapping[str, Any],
    trust_env: bool = False,
) -> list[Job]:
    """The runs that `playvirtual sweep` is asked for by these names and options, all of which can be played here.

    Tasks that only the grid's file names are played with `trust_env` alone, where that executes a module.
    """
    whole = load(experiment_name)
    check_flags(whole, options)
    grid = select(whole, rows)
    tasks = chosen_tasks(grid, suite_names, trust_env=trust_env)
    return jobs(grid, tasks, seeds, out, preset=preset, options=options)


def record_labels(experiment_name: str, out: Path, planned: Sequence[Job]) -> None:
    """Writes the title and the labels of a grid of one's own beside its runs, for their report."""
    if experiment_name in EXPERIMENTS:
        return
    grid = load(experiment_name)
    own = {row.label for row in grid.rows}
    grid_record.write(out, grid.name, grid.title, [(job.path, job.label) for job in planned if job.label in own])


def jobs(
    grid: Experiment,
    tasks: Sequence[SuiteTask],
    seeds: int,
    out: Path,
    *,
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Every run of the grid, seed by seed so that a study can be read early; runs that rows share are listed once.

    Without `preset` the experiment's own holds.
    """
    if not 1 <= seeds <= MAX_SEEDS:
        raise InputError(f"seeds: {seeds} is not allowed; allowed: 1 to {MAX_SEEDS}")
    found: dict[Path, Job] = {}
    env_args = as_texts((options or {}).get("env_args", ()))
    for seed in range(1, seeds + 1):
        for entry in tasks:
            kinds = ("any", action_kind(entry.task, env_args=env_args))
            for row in (r for r in grid.rows if r.actions in kinds):
                try:
                    job = _job(grid, row, entry, seed, out, preset or grid.preset, options or {})
                except InputError as error:  # of several tasks, one may refuse what the others accept
                    raise InputError(str(error) if entry.task in str(error) else f"{entry.task}: {error}") from None
                found.setdefault(job.path, job)
    if not found:
        wanted = " or ".join(sorted({row.actions for row in grid.rows}))
        raise InputError(f"suite: no row of {grid.name!r} is for these tasks; allowed: tasks with {wanted} actions")
    return list(found.values())


def _job(
    grid: Experiment, row: Row, entry: SuiteTask, seed: int, out: Path, preset: str, options: Mapping[str, Any]
) -> Job:
    """One run, in a folder that is named after what the row and the suite change; `options` are the whole study's.

    The study's options do not override what a method sets itself: with --K 3, RL stays without prediction.
    """
    after = _job(grid, _encoder_row(grid, row), entry, seed, out, preset, options).path if row.encoder_of else None
    # The path is absolute because a run may be carried out in another working directory.
    encoder = {"encoder_from": str(after.resolve())} if after is not None else {}
    of_row = {**entry.options, **row.options, **encoder}
    named = assemble(entry.task, row.method, preset, of_row)
    free = {name: value for name, value in options.items() if name not in method_changes(row.method)}
    wanted = {**entry.options, **free, **row.options, **encoder, "seed": seed}
    config = assemble(entry.task, row.method, preset, wanted)
    folder = folder_name(row.method, preset, changes(to_dict(named)))
    path = out / entry.task.replace("/", "-") / folder / f"seed-{seed}"
    values = flat(to_dict(config))
    # Left to itself a run would choose the size by the device that it finds, which need not be like the one here.
    given = [*wanted, *(["size"] if config.fitted_to and "size" not in wanted else [])]
    return Job(row.label, config, {name: values[name] for name in given}, path, after, grid.probe)


def check_flags(grid: Experiment, options: Mapping[str, Any]) -> None:
    """Raises for an option of the whole study that every row of the grid sets itself, as it would change no run."""
    for name, value in options.items():
        if all(name in {**row.options, **method_changes(row.method)} for row in grid.rows):
            raise InputError(
                f"{name}: {value!r} is not allowed with {grid.name}, every row of which sets it; allowed: other flags, "
                "--rows, or a grid of your own"
            )


def _encoder_row(grid: Experiment, row: Row) -> Row:
    """The row whose runs train the encoders that the runs of `row` load."""
    rows = {r.label: r for r in grid.rows if not r.encoder_of}
    if row.encoder_of not in rows:
        raise unknown(f"row {row.label!r}: encoder_of", row.encoder_of, rows)
    return rows[row.encoder_of]


def select(grid: Experiment, rows: str | None) -> Experiment:
    """The grid with only the rows whose label or method is in the list, and the rows whose encoders those load.

    The list is separated by semicolons if it has any, else by commas, unless the whole of it is one row's label.
    """
    if rows is None:
        return grid
    known = {key for row in grid.rows for key in (row.label, row.method)}
    parts = [rows] if rows.strip() in known else rows.split(";" if ";" in rows else ",")
    names = [name for part in parts if (name := part.strip())]
    if not names:
        raise InputError(f"rows: {rows!r} names none; allowed: labels or methods of {grid.name}")
    for name in names:
        if name not in known:
            raise unknown("rows", name, known)
    wanted = [row for row in grid.rows if {row.label, row.method} & set(names)]
    loaded = {row.encoder_of for row in wanted}
    return replace(grid, rows=tuple(row for row in grid.rows if row in wanted or row.label in loaded))


def chosen_tasks(grid: Experiment, names: str | None, *, trust_env: bool = False) -> tuple[SuiteTask, ...]:
    """The tasks of `names`, by default those of the experiment; raises unless all of them can be played here."""
    if names is None and not grid.suites:
        raise InputError("suite: a grid of one's own has none; give --suite, or suite = … in the file")
    if names is None:
        check_trusted_suites(grid, trust_env=trust_env)
    tasks = suite(names if names is not None else ",".join(grid.suites))
    for entry in tasks:
        envs.check(entry.task)
    return tasks


def check_trusted_suites(grid: Experiment, *, trust_env: bool) -> None:
    """Raises an InputError if a task that only the grid's file names would execute a module, before it does."""
    for name in ",".join(grid.suites).split(","):
        envs.check_trusted(name.strip(), f"the grid {grid.source!r}", trust_env=trust_env)


def _read_toml(path: Path) -> Mapping[str, Any]:
    record = files.read_toml(path, "experiment")
    if "rows" in record:  # the name in Python: [row.options] below a [[rows]] would belong to no row
        raise unknown(f"{path}", "rows", ("row", "title", "suite"))
    return {"rows": record.pop("row", None), **record}


def _run_python(path: Path) -> Mapping[str, Any]:
    files.read(path, "experiment", files.RECORD_BYTES)  # it is there, and a regular file
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise InputError(f"experiment: {str(path)!r} does not run: {type(error).__name__}: {error}") from None
    return {name: names[name] for name in ("rows", "title", "suite") if name in names}


def _experiment(path: Path, record: Mapping[str, Any]) -> Experiment:
    for name in record:
        if name not in ("rows", "title", "suite"):
            raise unknown(f"{path}", name, ("row", "title", "suite"))
    rows = record.get("rows")
    if not isinstance(rows, list | tuple) or not rows:
        raise InputError(f"experiment: {str(path)!r} has no row; allowed: one [[row]] or more (Python: rows = […])")
    given = record.get("suite", ())
    suites = (given,) if isinstance(given, str) else given
    if not isinstance(suites, list | tuple) or not all(isinstance(name, str) for name in suites):
        raise InputError(f"experiment: {str(path)!r} has suite = {given!r}; allowed: a name, or a list of names")
    found = tuple(_checked(path, number, _row(path, number, row)) for number, row in enumerate(rows, 1))
    _refuse_equal_labels(path, found)
    return Experiment(path.stem, str(record.get("title", path.stem)), str(path), found, tuple(suites))


def _checked(path: Path, number: int, row: Row) -> Row:
    """The same row; raises if its options include what --suite, --preset or --seeds set."""
    for name in row.options:
        if not isinstance(name, str):
            raise InputError(f"{path}: row {number}: option: {name!r} is not a name; allowed: one such as 'K'")
        if name in SET_ELSEWHERE:
            raise InputError(
                f"{path}: row {number}: option: {name!r} is not a row's to set; allowed: {SET_ELSEWHERE[name]}"
            )
    return row


def _refuse_equal_labels(path: Path, rows: Sequence[Row]) -> None:
    """Raises if two rows of one task have the same label; rows for different kinds of actions may share one."""
    for number, row in enumerate(rows, 1):
        for before, other in enumerate(rows[: number - 1], 1):
            if row.label == other.label and (row.actions == other.actions or "any" in (row.actions, other.actions)):
                raise InputError(
                    f"{path}: row {number}: label: {row.label!r} is that of row {before}; allowed: one of its own"
                )


def _row(path: Path, number: int, row: Any) -> Row:
    if isinstance(row, Row):
        return row
    if not isinstance(row, Mapping):
        raise InputError(f"{path}: row {number} is {row!r}; allowed: a table with {', '.join(ROW_KEYS)}")
    for name in row:
        if name not in ROW_KEYS:
            raise unknown(f"{path}: row {number}", str(name), ROW_KEYS)
    method, options = str(row.get("method", "playvirtual")), row.get("options", {})
    if method not in method_names():
        raise unknown(f"{path}: row {number}: method", method, method_names())
    if not isinstance(options, Mapping):
        raise InputError(f"{path}: row {number}: options is {options!r}; allowed: a table such as K = 3")
    return Row(str(row.get("label", folder_name(method, "paper", options))), method, dict(options))
