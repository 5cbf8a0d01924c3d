"""The figures of many trials, by file and kind of damage."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.replication.damage.trial import Outcome
from tests.support.hostile.judge import aligned

_COLUMNS = (
    "trials",
    "detected",
    "repaired",
    "lost",
    "skipped",
    "altered",
    "out of order",
    "refused truthfully",
    "repeated",
    "failed",
    "seconds",
)
_NAMED = ("lost", "skipped", "altered", "out of order")


def table(outcomes: Sequence[Outcome], title: str = "damage") -> list[str]:
    """Returns a line for each file and kind, and one for all. Trials with nothing to damage are left out."""
    made = [outcome for outcome in outcomes if not outcome.is_empty]
    rows = [[title, *_COLUMNS]]
    names = {(outcome.damage.file, outcome.damage.kind): None for outcome in made}
    for file, kind in sorted(names):
        chosen = [one for one in made if (one.damage.file, one.damage.kind) == (file, kind)]
        rows.append([" · ".join(filter(None, (file, kind))), *_figures(chosen)])
    return aligned([*rows, ["all", *_figures(made)]])


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    return [
        str(len(outcomes)),
        str(sum(outcome.detected for outcome in outcomes)),
        str(sum(outcome.repaired for outcome in outcomes)),
        *(str(sum(finding.startswith(name) for finding in findings)) for name in _NAMED),
        str(sum(outcome.refused for outcome in outcomes)),
        str(sum(outcome.repeated for outcome in outcomes)),
        str(sum(bool(outcome.findings) for outcome in outcomes)),
        f"{sum(outcome.seconds for outcome in outcomes) / max(len(outcomes), 1):.1f}",
    ]
