"""`make mutants`: applies each fault to a copy of the code, runs the tests that should notice it, and prints who did.

    python -m tests.mutants                      # all faults, as many at a time as there are cores
    python -m tests.mutants --only replay        # those whose list, file or name contains the word
    python -m tests.mutants --list               # what there is, without running anything
    python -m tests.mutants --table docs/mutants.md

The exit status is 0 if every fault was noticed but those that are explained as equivalent, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.faults import SOURCE, Fault, read_faults
from tests.mutants.table import table
from tests.mutants.trials import Outcome, Trial, carry_out


def run(faults: Sequence[Fault], jobs: int) -> list[Outcome]:
    """The outcome of each fault, in their order; they are printed as they come."""
    outcomes: dict[str, Outcome] = {}
    for outcome in carry_out(faults, jobs):
        outcomes[outcome.fault.name] = outcome
        print(f"{len(outcomes):4} {outcome.line()}", flush=True)
    return [outcomes[fault.name] for fault in faults]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose list, file or name contains WORD")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="faults tried at once")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the outcomes as a page of Markdown")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if options.only in f"{fault.group} {fault.file} {fault.name}"]
    if not faults:
        parser.error(f"--only: no fault has {options.only!r} in its list, file or name")
    if options.list:
        print("\n".join(f"{fault.group}: {fault.name} ({fault.file})" for fault in faults))
        return 0
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"{len(faults)} faults; first the tests without any fault: {' '.join(tests)}", flush=True)
    jobs = max(options.jobs, 1)
    shares = [tests[n::jobs] for n in range(jobs) if tests[n::jobs]]
    for trial in [Trial.start(share, SOURCE.parent, timeout=math.inf) for share in shares]:
        code, first = trial.wait()
        if code:
            print(f"error: they must pass before a fault says anything; {first}", file=sys.stderr)
            return 1
    outcomes = run(faults, jobs)
    if options.table:
        options.table.write_text(table(outcomes), encoding="utf-8")
    must = [outcome for outcome in outcomes if not outcome.fault.equivalent]
    equivalent = f", {len(outcomes) - len(must)} explained as equivalent" if len(outcomes) > len(must) else ""
    print(f"\n{sum(outcome.good for outcome in must)} of {len(must)} noticed{equivalent}")
    bad = [outcome for outcome in outcomes if not outcome.good]
    print("\n".join(outcome.line() for outcome in bad))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
