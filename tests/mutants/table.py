"""The outcomes of all faults as a page of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.mutants.trials import Outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Numbers by list, then every fault with the test that noticed it."""
    must = [outcome for outcome in outcomes if not outcome.fault.equivalent]
    noticed = sum(outcome.good for outcome in must)
    groups = Counter(outcome.fault.group for outcome in outcomes)
    lines = [
        "# Faults, and the tests that notice them",
        "",
        "Written by `make mutants` ([testing.md](testing.md) says what it does).",
        "",
        f"{len(outcomes)} faults: {noticed} of {len(must)} noticed, "
        f"{len(outcomes) - len(must)} explained as equivalent.",
        "",
        "| List | Faults | Noticed | Equivalent |",
        "| --- | ---: | ---: | ---: |",
    ]
    for group, count in groups.items():
        good = [outcome.good for outcome in must if outcome.fault.group == group]
        lines.append(f"| {group} | {count} | {sum(good)} | {count - len(good)} |")
    for group in groups:
        lines += ["", f"## {group}", "", "| Fault | In | Noticed by |", "| --- | --- | --- |"]
        lines += [_row(outcome) for outcome in outcomes if outcome.fault.group == group]
    return "\n".join(lines) + "\n"


def _row(outcome: Outcome) -> str:
    fault = outcome.fault
    if outcome.good:
        by = f"equivalent: {fault.equivalent}" if fault.equivalent else f"`{outcome.by}`"
    else:
        by = f"**{outcome.status}** {outcome.by}".strip()
    cells = (fault.name, f"`{fault.file}`", by)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
