"""`python -m bench.soak --hostile`: all known attacks together, beside a healthy client."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.process_figures import processor_times
from bench.soak.attackers import IDLE_CONNECTIONS, TRICKLING_CONNECTIONS, Plan, Tally
from metaq.memory import TRIM_BYTES
from tests.support.hostile.clean_up import forget_strangers
from tests.support.hostile.healthy import KINDS, HealthyClient, Timing, Verdict, Window
from tests.support.hostile.judge import MIB, MemoryWatch, aligned
from tests.support.hostile.recording import record
from tests.support.hostile.restarts import Attacked, End, complaints
from tests.support.hostile.target import Target, runtime_info
from tests.support.serving import Serving

SECONDS = 600.0
FRAMES = 1_000_000
"""Mutated frames in a run of full length; a shorter one throws fewer."""
GENERATED = 60_000
"""Requests made from the types of their fields, in a run of full length."""
GENERATED_PART_MIN = 1 / 3
"""A run with fewer of them proves nothing. A slow machine need not manage all."""
ENDS: tuple[End, ...] = ("stop", "kill", "kill", "stop")
"""How the broker ends between the bursts of generated requests after the attacks."""
BURSTS_PART = 0.1
"""Each of these bursts takes this part of the time of the attacks, divided by their number."""
P99_RATIO, P99_SLACK_S = 3, 0.1
SLACK_BYTES = 64 * MIB
"""For what is allocated before it is counted, and for what the allocator rounds up."""
KEPT_BYTES = TRIM_BYTES + 32 * MIB
GIVEN_BACK_S = 60.0
QUIET_S_MIN = 35.0
"""Longer than a name server lets others claim the place of a broker that has just come."""
PREFERENCE = -5
SETTINGS = {"commit_log_file_bytes": 256 * MIB}
_LOOK_EVERY_S = 0.5
_SAY_EVERY_S = 10.0
_PATIENCE_S = 2.0
"""How long attackers may take to tell what they did when the time is over. Then they are ended."""


@dataclass
class Figures:
    """Everything that the run has measured, and what it should have been."""

    seed: int
    frames_wanted: int
    generated_wanted: int = 0
    quiet: dict[str, Timing] = field(default_factory=dict)
    attacked: dict[str, Timing] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Requests of the healthy client that were refused or cut."""
    failure_count: int = 0
    tallies: list[Tally] = field(default_factory=list)
    verdict: Verdict | None = None
    own_before: int = 0
    own_peak: int = 0
    own_after: int = 0
    given_back_s: float = 0.0
    budget: int = 0
    clients_budget: int = 0
    reported_peak: int = 0
    cut: int = 0
    forgotten: int = 0
    ran_s: float = 0.0
    waited_s: float = 0.0
    """How long the broker's threads ran in the attack, and waited for a processor."""
    log_problems: list[str] = field(default_factory=list)
    """Tracebacks and panics in the log of the broker."""
    restart_problems: list[str] = field(default_factory=list)
    restarts_told: str = ""
    """The generated requests after the attacks, with restarts of the broker between them."""

    def counts(self) -> Counter[str]:
        return sum((tally.counts for tally in self.tallies), Counter())

    def bound_s(self, kind: str) -> float:
        return P99_RATIO * self.quiet[kind].percentile_s(99) + P99_SLACK_S

    def problems(self) -> list[str]:
        """Everything that is not as it must be."""
        found = [f"deceived: {text}" for tally in self.tallies for text in tally.deceived]
        for kind in KINDS:
            p99_s = self.attacked[kind].percentile_s(99)
            if p99_s > self.bound_s(kind):
                found.append(f"{kind}: p99 {p99_s * 1e3:.1f} ms, allowed {self.bound_s(kind) * 1e3:.1f} ms")
        if self.failure_count:
            found.append(f"{self.failure_count} requests of the healthy client failed: {self.failures[:5]}")
        allowed = self.own_before + self.budget + self.clients_budget + SLACK_BYTES
        if self.own_peak > allowed:
            found.append(f"memory: peak {self.own_peak / MIB:.0f} MiB, allowed {allowed / MIB:.0f} MiB")
        if self.reported_peak > self.budget:
            found.append(f"memory for connections: {self.reported_peak / MIB:.0f} MiB, above its budget")
        if self.own_after > self.own_before + KEPT_BYTES:
            found.append(f"memory: {self.own_after / MIB:.0f} MiB after {GIVEN_BACK_S:.0f} s of quiet")
        if self.verdict is None or not self.verdict.acknowledged:
            found.append("nothing was acknowledged")
        else:
            found += self.verdict.problems
        if (thrown := self.counts()["mutated frames"]) < self.frames_wanted:
            found.append(f"only {thrown:,} of {self.frames_wanted:,} mutated frames were sent")
        made = self.counts()["generated requests"]
        if made < GENERATED_PART_MIN * self.generated_wanted:
            found.append(f"only {made:,} of {self.generated_wanted:,} generated requests were sent")
        found += [*self.log_problems, *self.restart_problems]
        for kind, wanted in (("idle", IDLE_CONNECTIONS), ("trickling", TRICKLING_CONNECTIONS)):
            if (most := self.counts()[f"{kind} at once"]) < wanted:
                found.append(f"only {most:,} of {wanted:,} {kind} connections were open at once")
        return found

    def lines(self) -> list[str]:
        rows = [
            ["healthy client, ms", "quiet p50", "p99", "worst", "attacked p50", "p99", "worst", "allowed p99"]
        ]
        for kind in KINDS:
            cells = [
                f"{value * 1e3:.1f}"
                for timing in (self.quiet[kind], self.attacked[kind])
                for value in (timing.percentile_s(50), timing.percentile_s(99), timing.worst_s())
            ]
            rows.append(
                [f"{kind} ({len(self.attacked[kind].seconds):,})", *cells, f"{self.bound_s(kind) * 1e3:.1f}"]
            )
        counts = self.counts()
        acknowledged = self.verdict.acknowledged if self.verdict else 0
        return [
            *aligned(rows),
            "",
            f"memory of the broker, MiB: before {self.own_before / MIB:.0f}, "
            f"peak {self.own_peak / MIB:.0f}, after "
            f"{self.own_after / MIB:.0f} ({self.given_back_s:.0f} s of quiet); it reports a peak of "
            f"{self.reported_peak / MIB:.0f} for connections, of {self.budget / MIB:.0f} allowed, and cut "
            f"{self.cut:,} connections",
            f"the threads of the broker ran for {self.ran_s:.0f} s, "
            f"and waited {self.waited_s:.0f} s for a processor that others had",
            f"{acknowledged:,} messages acknowledged, {self.failure_count} requests failed, "
            f"{self.forgotten:,} names of attackers deleted afterwards; seed {self.seed}",
            *filter(None, [self.restarts_told]),
            "attacks: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())),
            *(f"not as intended: {text}" for tally in self.tallies for text in tally.broken[:3]),
        ]


def run_hostile(home: Path, seconds: float, seed: int | None, say: Callable[[str], None]) -> int:
    """Prints the table and returns the exit code."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    figures = hostile(home, seconds, random.randrange(1 << 32) if seed is None else seed, say)
    problems = figures.problems()
    print(*figures.lines(), *(f"FAILED: {problem}" for problem in problems), sep="\n")
    print("failed" if problems else "passed")
    return 1 if problems else 0


def hostile(home: Path, seconds: float, seed: int, say: Callable[[str], None]) -> Figures:
    part = min(1.0, seconds / SECONDS)
    figures = Figures(seed, round(FRAMES * part), round(GENERATED * part))
    say(
        f"seed {seed}; {figures.frames_wanted:,} mutated frames and {figures.generated_wanted:,} generated "
        f"requests in {seconds:g} s"
    )
    _attack_all(home, seconds, figures, say)
    _attack_with_restarts(home, seconds, figures, say)
    return figures


def _attack_with_restarts(home: Path, seconds: float, figures: Figures, say: Callable[[str], None]) -> None:
    """Sends generated requests to a broker that is stopped and killed in between."""
    attacked = Attacked(home / "restarts", SETTINGS, figures.seed)
    bursts = len(ENDS) + 1
    try:
        attacked.run(BURSTS_PART * seconds / bursts, ENDS, say)
    except (RuntimeError, TimeoutError) as failure:
        attacked.problems.append(f"start {attacked.starts} of the broker: {failure}")
    figures.restart_problems += [f"with restarts: {text}" for text in attacked.problems]
    figures.restarts_told = (
        f"with {len(ENDS)} restarts: {attacked.throwers.frames:,} generated requests, "
        f"{attacked.acknowledged:,} messages acknowledged, peak {attacked.peak / MIB:.0f} MiB"
    )


def _attack_all(home: Path, seconds: float, figures: Figures, say: Callable[[str], None]) -> None:
    with (
        Serving(
            home / "broker", home / "data", flush="async", settings=SETTINGS, prefix=("setsid",)
        ) as broker,
        HealthyClient(broker.broker, broker.nameserver) as healthy,
        MemoryWatch(broker.pid) as memory,
    ):
        _prefer(broker.pid, healthy.pid)
        target = Target(broker.broker, broker.nameserver, broker.child.log)
        to_broker, to_names = record(broker.broker, broker.nameserver)
        say(f"recorded {len(to_broker)} requests to the broker and {len(to_names)} to the name server")
        healthy.window()
        time.sleep(min(60.0, max(QUIET_S_MIN, seconds / 10)))
        figures.quiet = healthy.window().timings
        figures.own_before = memory.now()
        say(f"quiet: {_told(figures.quiet)}, {figures.own_before / MIB:.0f} MiB")
        plan = Plan(
            target,
            time.monotonic() + seconds,
            figures.frames_wanted,
            figures.generated_wanted,
            figures.seed,
            to_broker,
            to_names,
        )
        memory.take_peak()
        ran_s, waited_s = processor_times(broker.pid)
        figures.tallies = _attack(plan, healthy, memory, figures, say)
        figures.own_peak = memory.take_peak()
        then = processor_times(broker.pid)
        figures.ran_s, figures.waited_s = then[0] - ran_s, then[1] - waited_s
        figures.forgotten = forget_strangers(target)
        began = time.monotonic()
        memory.falls_below(figures.own_before + KEPT_BYTES, GIVEN_BACK_S)
        figures.own_after, figures.given_back_s = memory.now(), time.monotonic() - began
        with target.connect() as client:
            reported = runtime_info(client)
        figures.budget = int(reported["connectionMemoryBytesMax"])
        figures.clients_budget = int(reported["clientsMemoryBytesMax"])
        figures.reported_peak = int(reported["connectionMemoryBytesPeak"])
        figures.cut = int(reported["connectionsCutTotal"])
        quiet_again = healthy.window()
        figures.failures += quiet_again.failures
        figures.failure_count += quiet_again.failure_count
        figures.verdict = healthy.check()
        if broker.stop() != 0:
            figures.log_problems.append("the broker did not stop in order")
        figures.log_problems += complaints(broker.log())


def _attack(
    plan: Plan,
    healthy: HealthyClient,
    memory: MemoryWatch,
    figures: Figures,
    say: Callable[[str], None],
) -> list[Tally]:
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [
        spawn.Process(target=work, args=(plan, results), name=name, daemon=True)
        for name, work in plan.processes().items()
    ]
    for process in processes:
        process.start()
    tallies: dict[str, Tally] = {}
    said_at = time.monotonic()
    try:
        while (now := time.monotonic()) < plan.ends_at + _PATIENCE_S:
            with contextlib.suppress(queue.Empty):
                while True:
                    tally = results.get(timeout=_LOOK_EVERY_S)
                    tallies[tally.name] = tally
            _raise_if_ended(processes)
            if now < plan.ends_at:
                window = healthy.window()
                _note(figures, window)
            if now - said_at >= _SAY_EVERY_S:
                said_at = now
                frames = sum((tally.counts for tally in tallies.values()), Counter())["mutated frames"]
                say(
                    f"{max(0, plan.ends_at - now):4.0f} s to go: {_told(window.timings)}, "
                    f"{memory.now() / MIB:.0f} MiB, {frames:,} frames"
                )
    finally:
        for process in processes:
            process.kill()
    return list(tallies.values())


def _prefer(*processes: int) -> None:
    """Lets the broker and the healthy client, each in a session of its own, run before the attackers and
    before whatever else this machine does, as far as this account may: attackers on other machines would take
    no processor time from them."""
    for pid in processes:
        # Linux keeps a priority for each thread. If only the first thread had it, the threads that it starts
        # later would run before those that serve connections.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), PREFERENCE)
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(PREFERENCE))


def _raise_if_ended(processes: Sequence[multiprocessing.process.BaseProcess]) -> None:
    for process in processes:
        if process.exitcode not in (None, 0):
            raise RuntimeError(f"the attackers `{process.name}` ended early with {process.exitcode}")


def _note(figures: Figures, window: Window) -> None:
    for kind, timing in window.timings.items():
        figures.attacked.setdefault(kind, Timing()).seconds.extend(timing.seconds)
    figures.failures += window.failures
    figures.failure_count += window.failure_count


def _told(timings: dict[str, Timing]) -> str:
    """The slowest kinds of request."""
    p99 = max((timing.percentile_s(99), kind) for kind, timing in timings.items())
    worst = max((timing.worst_s(), kind) for kind, timing in timings.items())
    return f"p99 {p99[0] * 1e3:.0f} ms ({p99[1]}), worst {worst[0] * 1e3:.0f} ms ({worst[1]})"
