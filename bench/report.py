"""Medians, ratios, and the table at the end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.workloads import LIMIT, Outcome

_MB = 1e6


@dataclass(frozen=True)
class Row:
    """One figure of the two sides, or of ours alone; `ratio` is always ours to the peer's."""

    what: str
    ours: float
    peer: float | None
    form: str
    goal: str = ""

    @property
    def ratio(self) -> float:
        if self.peer is None:
            return float("nan")
        return self.ours / self.peer if self.peer else float("inf")


# Goals of the project for the ratio or for our own figure, where there is one.
_GOALS = {
    ("producer", "per_second"): "≥ 1.5 ×",
    ("batch", "per_second"): "≥ 3 ×",
    ("transaction", "per_second"): "≥ 1 ×",
    ("consumer", "per_second"): "≥ 1 ×",
    ("replicated", "per_second"): "> 1 ×, ≥ 0.6 × alone",
    ("producer", "broker_cpu_us"): "≤ 6 µs",
    ("consumer", "broker_cpu_us"): "≤ 0.25 ×",
    ("start", "start_to_ready_s"): "≤ 1 s",
    ("start", "idle_resident_bytes"): "≤ 120 MB",
    ("start", "fresh_store_bytes"): "< 100 MB",
    ("delay", "due_per_second"): "≥ 50,000",
    ("delay", "first_late_ms"): "≤ 1,000",
    ("delay", "waiting_own_bytes"): "≤ 200 MB",
    ("client-produce", "per_second"): "≥ 0.8 ×, then 1",
    ("client-consume", "per_second"): "≥ 1 ×",
    ("client-aio", "per_second"): "≥ 5 ×",
    ("spark-read", "per_second"): "≥ 1 ×, then 1.5",
    ("spark-write", "per_second"): "≥ 1 ×",
    ("binlog", "inserts_per_second"): "≥ 30,000",
    ("binlog", "updates_per_second"): "≥ 30,000",
    ("binlog", "mirror_behind_s"): "≤ 30 s",
    ("switch", "killed_p50_s"): "≤ 1 s",
    ("switch", "killed_p99_s"): "≤ 3 s",
    ("switch", "switched_max_s"): "≤ 1 s",
    ("switch", "switched_errors"): "0",
    ("console", "p99_ms"): "1 ×",
    ("checksums", "per_second"): "≥ 0.97 ×",
    ("scrub", "p99_ms"): "≤ 1.1 ×",
    ("client-send", "p50_ms"): "≤ 0.3 ms",
    ("client-send", "p99_ms"): "≤ 2 ms",
}
_FORMS = {
    "per_second": ("messages per second", "{:,.0f}", 1.0),
    "average_ms": ("average time, ms", "{:.3f}", 1.0),
    "p50_ms": ("time of a send, p50, ms", "{:.3f}", 1.0),
    "p99_ms": ("time of a send, p99, ms", "{:.3f}", 1.0),
    "client_cpu_us": ("client CPU per message, µs", "{:.2f}", 1.0),
    "broker_cpu_us": ("broker CPU per message, µs", "{:.2f}", 1.0),
    "start_to_ready_s": ("start to ready, s", "{:.2f}", 1.0),
    "idle_resident_bytes": ("resident memory, idle, MB", "{:,.1f}", _MB),
    "fresh_store_bytes": ("disk of a fresh store, MB", "{:,.1f}", _MB),
    "due_per_second": ("due messages delivered per second", "{:,.0f}", 1.0),
    "first_late_ms": ("the first comes after, ms", "{:,.0f}", 1.0),
    "sent_per_second": ("sent per second, to wait", "{:,.0f}", 1.0),
    "waiting_own_bytes": ("own memory while they wait, MB", "{:,.1f}", _MB),
    "waiting_resident_bytes": ("the same with page cache, MB", "{:,.1f}", _MB),
    "inserts_per_second": ("inserts into the topic per second", "{:,.0f}", 1.0),
    "updates_per_second": ("updates into the topic per second", "{:,.0f}", 1.0),
    "single_per_second": ("… of one row each", "{:,.0f}", 1.0),
    "mirror_behind_s": ("mirror behind at 5,000 a second, s", "{:,.1f}", 1.0),
    "killed_p50_s": ("pause when the master dies, p50, s", "{:.2f}", 1.0),
    "killed_p99_s": ("… p99, s", "{:.2f}", 1.0),
    "killed_errors": ("… errors", "{:.0f}", 1.0),
    "switched_p50_s": ("pause of a planned switch, p50, s", "{:.2f}", 1.0),
    "switched_max_s": ("… the longest, s", "{:.2f}", 1.0),
    "switched_errors": ("… errors", "{:.0f}", 1.0),
    "delivered_own_bytes": ("own memory when all came, MB", "{:,.1f}", _MB),
}


def medians(outcome: Outcome) -> dict[str, dict[str, float]]:
    """Side → figure → median over the rounds."""
    return {
        side: {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}
        for side, rounds in outcome.rounds.items()
    }


def sides(outcome: Outcome) -> tuple[str, str | None]:
    """Ours and the peer's, where it takes part."""
    ours, *peers = outcome.rounds
    return ours, peers[0] if peers else None


def rows(outcome: Outcome) -> list[Row]:
    middle = medians(outcome)
    ours, peer = sides(outcome)
    found = []
    for name, (what, form, unit) in _FORMS.items():
        # The age of a backlog's messages says nothing about the reader.
        if name in middle[ours] and (outcome.workload, name) != ("consumer", "average_ms"):
            goal = _GOALS.get((outcome.workload, name), "")
            other = None if peer is None else middle[peer][name] / unit
            found.append(Row(what, middle[ours][name] / unit, other, form, goal))
    for part in ("resident", "own"):
        if outcome.memory:
            what = "resident memory afterwards, MB" if part == "resident" else "of it not page cache, MB"
            goal = "≤ 200 MB" if part == "own" else ""
            values = {side: used[part] / _MB for side, used in outcome.memory.items()}
            found.append(Row(what, values[ours], values.get(peer or ""), "{:,.0f}", goal))
    return found


def beside(outcome: Outcome) -> dict[str, float]:
    """The messages per second of all other sides, without ours, the peer and the limit."""
    others = list(outcome.rounds)[2:]
    middle = medians(outcome)
    return {side: middle[side]["per_second"] for side in others if side != LIMIT}


def beside_lines(outcome: Outcome) -> list[str]:
    """For information: the other sides of the same rounds, and our ratio to each."""
    mine = medians(outcome)[sides(outcome)[0]].get("per_second", 0.0)
    return [
        f"{'beside: ' + side:<34}{mine:>14,.0f}{figure:>17,.0f}{mine / figure:>9.3f}"
        for side, figure in beside(outcome).items()
    ]


def limit_line(outcome: Outcome) -> str | None:
    """How close both come to a server that does nothing, which is the limit of this client."""
    middle = medians(outcome)
    if LIMIT not in middle:
        return None
    ours, peer, *_ = middle
    limit = middle[LIMIT]["per_second"]
    shares = [middle[side]["per_second"] / limit for side in (ours, peer)]
    return f"{'share of ' + f'{limit:,.0f}, the limit':<34}{shares[0]:>14.2f}{shares[1]:>17.2f}"


def table(outcomes: Sequence[Outcome], setting: str) -> str:
    lines = [setting]
    for outcome in outcomes:
        ours, peer = sides(outcome)
        count = len(outcome.rounds[ours])
        title = f"{outcome.workload} (median of {count})"
        lines += ["", f"{title:<34}{ours:>14}{peer or '':>17}{'ratio' if peer else '':>9}   goal", "-" * 87]
        for row in rows(outcome):
            mine = row.form.format(row.ours)
            other = "" if row.peer is None else row.form.format(row.peer)
            ratio = "" if row.peer is None else f"{row.ratio:.3f}"
            lines.append(f"{row.what:<34}{mine:>14}{other:>17}{ratio:>9}   {row.goal}".rstrip())
        lines += beside_lines(outcome)
        lines += filter(None, [limit_line(outcome)])
    return "\n".join(lines)


def machine_form(outcomes: Sequence[Outcome], setting: str) -> str:
    result: dict[str, Any] = {"setting": setting, "workloads": {}}
    for outcome in outcomes:
        middle = medians(outcome)
        ours, peer = sides(outcome)
        result["workloads"][outcome.workload] = {
            "sides": {"ours": ours, "peer": peer},
            "rounds": outcome.rounds,
            "medians": middle,
            "ratios": {}
            if peer is None
            else {
                name: middle[ours][name] / middle[peer][name] for name in middle[ours] if middle[peer][name]
            },
            "beside": {side: middle[ours]["per_second"] / figure for side, figure in beside(outcome).items()},
            "memory_after_bytes": outcome.memory,
        }
    return json.dumps(result, indent=2, ensure_ascii=False)
