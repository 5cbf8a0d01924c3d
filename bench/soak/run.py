"""One soak: a broker, a client process for each form of consumption, and samples of all of them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.soak.client import DRAIN_S, FLOWING, FORMS, RESULT
from bench.soak.watch import Bounds, Verdict, Watched
from tests.support.maven import REPOSITORY_ROOT
from tests.support.plain_client import SUCCESS, PlainClient, create_topic
from tests.support.processes import Child
from tests.support.serving import MIB, Serving

QUEUES = 8
START_S = 60
CLOSE_S = 30
SAMPLES = 300
SAMPLE_EVERY_S_MIN = 0.1
_CLEAN_PERCENT_MIN, _CLEAN_PERCENT_MAX = 30, 94
_STORE_PERCENT = 3
"""Disk space that the store may use: an hour at full rate writes more than most disks hold."""


@dataclass(frozen=True)
class Flowed:
    """How many messages one client sent, and how many it got back."""

    sent: int
    received: int


@dataclass(frozen=True)
class Outcome:
    seconds: float
    verdicts: list[Verdict]
    flows: dict[str, Flowed]

    @property
    def failures(self) -> list[str]:
        grown = [verdict.line() for verdict in self.verdicts if not verdict.is_flat]
        return grown + [
            f"{form}: {flow.received:,} of {flow.sent:,} messages came back"
            for form, flow in self.flows.items()
            if flow.received < flow.sent or not flow.sent
        ]

    def lines(self) -> list[str]:
        rates = [
            f"{form:<10} {flow.sent:,} messages sent and read, {flow.sent / self.seconds:,.0f} per second"
            for form, flow in self.flows.items()
        ]
        return rates + [verdict.line() for verdict in self.verdicts]

    def machine_form(self) -> str:
        return json.dumps(
            {
                "seconds": self.seconds,
                "processes": {verdict.name: verdict.figures() for verdict in self.verdicts},
                "messages": {
                    form: {"sent": flow.sent, "received": flow.received} for form, flow in self.flows.items()
                },
                "failures": self.failures,
            },
            indent=2,
            ensure_ascii=False,
        )


def soak(
    home: Path,
    seconds: float,
    *,
    forms: Sequence[str] = FORMS,
    bounds: Bounds | None = None,
    leaking: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Runs all forms at once for this long. `leaking` makes the clients leak, which the run must detect."""
    with Serving(home / "broker", home / "data", flush="async", settings=_settings(home)) as broker:
        with PlainClient(broker.broker) as client:
            for form in forms:
                reply = create_topic(client, f"soak_{form}", QUEUES)
                if reply.code != SUCCESS:
                    raise RuntimeError(f"topic soak_{form} was not created: {reply.remark}")
        children = {form: _start(form, broker.nameserver, home, seconds, leaking) for form in forms}
        watched = [Watched("broker", broker.pid, broker.data.resolve())]
        watched += [Watched(form, child.process.pid) for form, child in children.items()]
        try:
            for child in children.values():
                child.wait_for(lambda text: FLOWING if FLOWING in text else None, START_S, "first message")
            _watch(watched, children, seconds, say)
            for child in children.values():
                child.process.terminate()
            flows = {form: _flowed(child) for form, child in children.items()}
        finally:
            for child in children.values():
                child.kill()
        broker.stop()
    return Outcome(seconds, [one.verdict(bounds or Bounds()) for one in watched], flows)


def _settings(home: Path) -> dict[str, object]:
    """The oldest files go as soon as the store has taken its share of the disk and everybody has read them.
    Whoever else fills the disk meanwhile makes that share smaller, and takes nothing from a reader."""
    home.mkdir(parents=True, exist_ok=True)
    usage = shutil.disk_usage(home)
    used = round(100 * usage.used / (usage.used + usage.free))
    limit = min(_CLEAN_PERCENT_MAX, max(_CLEAN_PERCENT_MIN, used + _STORE_PERCENT))
    return {
        "disk_clean_percent": limit - 1,
        "disk_force_clean_percent": limit,
        "disk_refuse_percent": 99,
        "delete_unconsumed": "false",
        "commit_log_file_bytes": 256 * MIB,
    }


def _start(form: str, nameserver: str, home: Path, seconds: float, leaking: bool) -> Child:
    command = [
        sys.executable,
        "-m",
        "bench.soak.client",
        form,
        nameserver,
        f"soak_{form}",
        str(seconds + START_S),
    ]
    return Child(
        [*command, *(["--leak"] if leaking else [])], home / f"client-{form}.log", directory=REPOSITORY_ROOT
    )


def _watch(
    watched: Sequence[Watched], children: dict[str, Child], seconds: float, say: Callable[[str], None]
) -> None:
    every_s = max(SAMPLE_EVERY_S_MIN, seconds / SAMPLES)
    end = time.monotonic() + seconds
    said_at = time.monotonic()
    while time.monotonic() < end:
        time.sleep(every_s)
        try:
            for one in watched:
                one.look()
        except (FileNotFoundError, KeyError):
            pass  # A process that has ended cannot be sampled.
        for form, child in children.items():
            if not child.alive:
                raise RuntimeError(f"the client `{form}` ended early\n{child.tail()}")
        if time.monotonic() - said_at >= 60:
            said_at = time.monotonic()
            now = ", ".join(
                f"{one.name} {one.samples[-1].own_bytes / 1e6:.0f} MB {one.samples[-1].descriptors} fds"
                for one in watched
            )
            say(f"{end - said_at:6.0f} s to go: {now}")


def _flowed(child: Child) -> Flowed:
    line = child.wait_for(_result_line, DRAIN_S + CLOSE_S, "its result")
    return Flowed(**json.loads(line))


def _result_line(text: str) -> str | None:
    for line in text.splitlines(keepends=True):
        if line.startswith(RESULT) and line.endswith("\n"):
            return line.removeprefix(RESULT)
    return None
