"""Every table and figure of the paper as a grid of settings, and the suites of tasks that they run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from playvirtual import envs
from playvirtual.errors import InputError, unknown
from playvirtual.study.scores import DMC_SUITES, suite_tasks

Actions = Literal["discrete", "continuous", "any"]


@dataclass(frozen=True)
class Row:
    """One row of a table: its label, and the method and options that produce it."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    actions: Actions = "any"  # the row is run on tasks with this kind of actions
    published: tuple[str, str] | None = None  # (study, setting) in published/ablations.csv
    published_dmc: tuple[str, str] | None = None  # the same for DMControl, where `published` is of other settings there
    encoder_of: str = ""  # label of the row whose run of the same task and seed provides the encoder, which is frozen


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its rows, the suites it is made for, and what it needs beyond runs."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    suites: tuple[str, ...]
    needs: str = ""  # what it takes beyond the sweep to get the paper's numbers
    preset: str = "paper"  # under which the runs are those of the paper's numbers
    probe: str = ""  # that its table needs of every finished run; the sweep takes it


@dataclass(frozen=True)
class SuiteTask:
    """A task of a suite, and the options that the suite sets for it."""

    task: str
    options: Mapping[str, Any] = field(default_factory=dict)


BOTH = ("atari100k", "dmc100k")
ANALYSED = ("dmc/cartpole-swingup", "dmc/reacher-easy", "dmc/cheetah-run")
MAIN = (Row("SPR", "spr"), Row("PlayVirtual", "playvirtual"))
COMPARED = (Row("RL", "rl"), *MAIN)
CURL_AND_DRQ = (Row("CURL", "curl"), Row("DrQ", "drq"))
# The rows of the paper's tables that can be run; its world models (SimPLe, PlaNet, Dreamer, SLAC) are data alone.
RAINBOWS = (Row("DER", "der", actions="discrete"), Row("OTRainbow", "otr", actions="discrete"))
AUTOENCODER = Row("SAC+AE", "sac-ae", actions="continuous")
WITH_RESETS = (
    Row("SPR + resets", "spr-resets", actions="discrete"),
    Row("PlayVirtual + resets", "playvirtual-resets", actions="discrete"),
    Row("SR-SPR", "sr-spr", actions="discrete"),
    Row("SR-SPR + virtual", "sr-spr-virtual", actions="discrete"),
    Row("BBF", "bbf", actions="discrete"),
    Row("BBF + virtual", "bbf-virtual", actions="discrete"),
)
ON_TOP = (Row("CURL+virtual", "curl-virtual"), Row("DrQ+virtual", "drq-virtual"))


def _baseline(study: str, setting: str = "spr") -> Row:
    """SPR at its default K; where a table prints 728.0 on DMControl, the number of K = 9, that of K = 6 is shown."""
    return Row("Baseline", "spr", published=(study, setting), published_dmc=("K spr", "6"))


def _horizons() -> tuple[Row, ...]:
    """SPR and PlayVirtual for K = 0 … 12; at K = 0 both are RL alone and share its runs.

    K = 5, which is SPR's own, stands in the paper's text and for Atari alone.
    """
    schemes = (("SPR", "spr", (0, 3, 5, 6, 9, 12)), ("PlayVirtual", "playvirtual", (0, 3, 6, 9, 12)))
    return tuple(
        Row(
            f"{label}, K = {k}",
            method if k else "rl",
            {"K": k} if k else {},
            "discrete" if k == 5 else "any",
            published=(f"K {method}", str(k)),
        )
        for label, method, horizons in schemes
        for k in horizons
    )


def _virtual_counts() -> tuple[Row, ...]:
    """M = 0 … 3|A| for discrete actions, 0 … 30 for continuous ones; M = 0 is SPR."""
    discrete = [(f"{n}|A|", f"{n}A") for n in (1, 2, 3)]
    continuous = [(str(n), str(n)) for n in (1, 10, 20, 30)]
    kinds: list[tuple[str, Actions, list[tuple[str, str]]]] = [
        ("M atari", "discrete", discrete),
        ("M dmc", "continuous", continuous),
    ]
    return tuple(
        row
        for study, actions, values in kinds
        for row in (
            Row("M = 0", "spr", actions=actions, published=(study, "0")),
            *(Row(f"M = {m}", "playvirtual", {"M": value}, actions, (study, m)) for m, value in values),
        )
    )


EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment(
            "atari100k",
            "Scores on Atari-100k",
            "Table 1",
            (*RAINBOWS, *CURL_AND_DRQ, *MAIN),
            ("atari100k",),
        ),
        Experiment(
            "dmc100k",
            "Scores on DMControl-100k",
            "Table 2",
            (AUTOENCODER, *CURL_AND_DRQ, *MAIN),
            ("dmc100k",),
        ),
        Experiment(
            "dmc500k",
            "Scores on DMControl-500k",
            "Table 2",
            (AUTOENCODER, *CURL_AND_DRQ, *MAIN),
            ("dmc500k",),
        ),
        Experiment(
            "effectiveness",
            "Effectiveness of PlayVirtual on top of the baseline",
            "Table 3",
            (
                Row("Baseline w/o Pred", "rl", published=("effectiveness", "rl (baseline w/o pred)")),
                _baseline("effectiveness", "spr (baseline)"),
                Row("Baseline+BDM", "spr-bdm", published=("effectiveness", "spr-bdm")),
                Row(
                    "Baseline+BDM (prediction)",
                    "spr-bdm-prediction",
                    published=("effectiveness", "spr-bdm"),
                ),
                Row("PlayVirtual", "playvirtual", published=("effectiveness", "playvirtual")),
            ),
            BOTH,
        ),
        Experiment("ablation-k", "Influence of prediction steps K", "Table 4", _horizons(), BOTH),
        Experiment(
            "no-dm-update",
            "The cycle loss with and without training the dynamics model",
            "Table 5",
            (
                _baseline("no-dm-update"),
                Row("PlayVirtual-ND", "playvirtual-nd", published=("no-dm-update", "playvirtual-nd")),
                Row("PlayVirtual", "playvirtual", published=("no-dm-update", "playvirtual")),
            ),
            BOTH,
        ),
        Experiment(
            "metric-space",
            "Influence of the distance metric space",
            "Table 6",
            (
                _baseline("metric-space"),
                Row("PlayVirtual (latent)", "playvirtual-latent", published=("metric-space", "latent")),
                Row("PlayVirtual (projection)", "playvirtual", published=("metric-space", "projection")),
            ),
            BOTH,
        ),
        Experiment(
            "ablation-m", "Influence of the number of virtual trajectories M", "Table 7", _virtual_counts(), BOTH
        ),
        Experiment("test-curves", "Test performance every 5k environment steps", "Figure 2", MAIN, ("dmc100k",)),
        Experiment(
            "warmup",
            "Influence of the warm-up of λ_cyc",
            "Table 9",
            (
                _baseline("warmup"),
                Row("PlayVirtual (w/o warmup)", "playvirtual-no-warmup", published=("warmup", "without")),
                Row("PlayVirtual", "playvirtual", published=("warmup", "with")),
            ),
            BOTH,
        ),
        Experiment(
            "lambda-cyc-max",
            "Influence of the weight λ_cyc^max",
            "Table 10",
            (
                Row("λ = 0", "spr", published=("lambda_cyc_max", "0")),
                *(
                    Row(f"λ = {w:g}", "playvirtual", {"lambda_cyc_max": w}, published=("lambda_cyc_max", f"{w:g}"))
                    for w in (0.1, 1.0, 2.0, 10.0)
                ),
            ),
            BOTH,
        ),
        Experiment(
            "constraint-location",
            "Where the cycle must close",
            "Table 11",
            (
                _baseline("constraint-location"),
                Row(
                    "PlayVirtual (every step)",
                    "playvirtual-every-step",
                    published=("constraint-location", "every step"),
                ),
                Row("PlayVirtual (end step)", "playvirtual", published=("constraint-location", "end step")),
            ),
            BOTH,
        ),
        Experiment(
            "real-cycle",
            "Cycles along recorded actions beside those along virtual ones",
            "Appendix A.2, loss details",
            (
                Row("PlayVirtual", "playvirtual", published=("real-cycle", "virtual")),
                Row(
                    "PlayVirtual (recorded actions too)",
                    "playvirtual-real-cycle",
                    published=("real-cycle", "virtual and recorded"),
                ),
            ),
            ("atari100k",),
        ),
        Experiment(
            "action-sampling",
            "How virtual actions are drawn",
            "Table 14",
            (
                *(
                    Row(
                        f"Perturbed action ({sigma})",
                        "playvirtual-perturbed",
                        {"sigma": sigma},
                        published=("action-sampling", f"perturbed {sigma}"),
                    )
                    for sigma in (0.01, 0.02, 0.05)
                ),
                Row("Random action", "playvirtual", published=("action-sampling", "uniform")),
            ),
            ("dmc100k",),
        ),
        Experiment(
            "complexity",
            "Parameters and training time",
            "Appendix B.2",
            MAIN,
            ("atari/pong", "dmc/cartpole-swingup"),
            "runs that had the machine to themselves (--workers 1), or their times do not compare",
            preset="reference",
            probe="complexity",
        ),
        Experiment(
            "dynamics-mse",
            "Prediction error of the dynamics model",
            "Table 12",
            MAIN,
            ANALYSED,
            preset="reference",
            probe="dynamics",
        ),
        Experiment(
            "frozen-encoder",
            "Scores with pretrained, fixed encoders",
            "Table 13",
            (
                Row("None", "rl"),
                *MAIN,
                Row("Baseline Encoder", "rl", encoder_of="SPR"),
                Row("PlayVirtual Encoder", "rl", encoder_of="PlayVirtual"),
            ),
            ANALYSED,
            "two stages, which the sweep keeps in order: SPR and PlayVirtual first, then RL on their frozen encoders",
        ),
        Experiment(
            "modern",
            "SPR and PlayVirtual with resets, SR-SPR and BBF, each with and without virtual trajectories",
            "this project",
            (*MAIN, *WITH_RESETS),
            ("atari100k",),
        ),
        Experiment("minatar", "RL, SPR and PlayVirtual on MinAtar", "this project", COMPARED, ("minatar",)),
        Experiment("toy", "RL, SPR and PlayVirtual on the built-in toys", "this project", COMPARED, ("toy",)),
        Experiment(
            "baselines",
            "Every baseline beside SPR and PlayVirtual on three games of MinAtar",
            "this project",
            (Row("RL", "rl"), *RAINBOWS, AUTOENCODER, *CURL_AND_DRQ, *MAIN, *ON_TOP),
            ("minatar/breakout", "minatar/asterix", "minatar/space_invaders"),
        ),
    )
}

SUITE_NAMES = ("atari100k", *DMC_SUITES, "minatar", "toy")


def experiment(name: str) -> Experiment:
    """The paper's experiment of that name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def suite(names: str) -> tuple[SuiteTask, ...]:
    """The tasks of a comma-separated list of suites and tasks, each once and in order."""
    found: dict[tuple[str, int | None], SuiteTask] = {}
    for name in (part.strip() for part in names.split(",")):
        for entry in _suite(name):
            found.setdefault((entry.task, entry.options.get("steps")), entry)
    return tuple(found.values())


def _suite(name: str) -> tuple[SuiteTask, ...]:
    if name == "atari100k":
        return tuple(SuiteTask(f"atari/{game}") for game in suite_tasks(name))
    if name in DMC_SUITES:
        # 100,000 steps are the default of these tasks, so that the runs lie where `playvirtual train` puts them.
        options = {} if name == "dmc100k" else {"steps": DMC_SUITES[name]}
        return tuple(SuiteTask(f"dmc/{task}", options) for task in suite_tasks(name))
    if name in ("minatar", "toy"):
        return tuple(SuiteTask(task) for task in envs.task_names() if task.startswith(f"{name}/"))
    if "/" not in name:
        if not name:
            raise InputError(f"suite: '' is empty; allowed: {', '.join(SUITE_NAMES)}, or tasks separated by commas")
        raise unknown("suite", name, SUITE_NAMES)
    envs.check_name(name)
    return (SuiteTask(name),)
