"""`python -m bench.soak --faults`: every trial of tests/faults/replication, and the sum of their counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.replication.trial import APACHE, COUNTS_FILE
from tests.support.hostile.judge import aligned
from tests.support.maven import REPOSITORY_ROOT

TRIALS = "tests/faults/replication"
_SUMS = ("acknowledged", "faults", "lost", "duplicated", "out_of_order", "epochs")


def run_faults(home: Path) -> int:
    """Runs all trials and prints a table of their counts. Returns the exit code."""
    counts_file = home / "counts.jsonl"
    done = subprocess.run(
        # -rP prints the figures of each passed trial, and -ra why a trial was skipped.
        [sys.executable, "-m", "pytest", TRIALS, "-raP", f"--basetemp={home / 'trials'}"],
        cwd=REPOSITORY_ROOT,
        env={**os.environ, "METAQ_LONG": "1", COUNTS_FILE: str(counts_file)},
        check=False,
    )
    lines = counts_file.read_text().splitlines() if counts_file.exists() else []
    print(*table([json.loads(line) for line in lines]), sep="\n")
    return done.returncode


def table(trials: Sequence[dict[str, object]]) -> list[str]:
    """Returns a line for each trial, one for all trials of MetaQ, and then those of Apache's groups."""
    ours = [trial for trial in trials if not str(trial["trial"]).startswith(APACHE)]
    others = [trial for trial in trials if trial not in ours]
    total: dict[str, object] = {"trial": f"all {len(ours)} trials of MetaQ"}
    for name in _SUMS:
        total[name] = sum(int(str(trial[name])) for trial in ours)
    name = "masters_per_epoch"
    total[name] = max((int(str(trial[name])) for trial in ours), default=0)
    columns = ["trial", *_SUMS, name]
    rows = [[column.replace("_", " ") for column in columns]]
    rows += [[str(trial[column]) for column in columns] for trial in (*ours, total, *others)]
    return aligned(rows)
