"""Generated requests to a broker and its name server, which are stopped or killed in between."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.support.hostile import healthy
from tests.support.hostile.generation import Generator
from tests.support.hostile.healthy import HealthyClient, Window
from tests.support.hostile.judge import MIB, MemoryWatch
from tests.support.hostile.mutation import FrameThrower
from tests.support.hostile.target import Target, runtime_info
from tests.support.processes import free_port
from tests.support.serving import Serving

SLACK_BYTES = 64 * MIB
"""For what is allocated before it is counted, and for what the allocator rounds up."""
HEALTHY_AGAIN_S = 60.0
TURN = 8
"""Batches to one server before the other has its turn."""
_OTHERS = (healthy.TOPIC,)
_COMPLAINT = re.compile(r"^Traceback \(most recent call last\)|panicked at|Task exception was never", re.M)
_CONTEXT_BYTES = 2_500

End = Literal["stop", "kill"]


@dataclass
class Throwers:
    """Throws generated requests at both servers. The generators go on through restarts."""

    seed: int
    to_broker: Generator = field(init=False)
    to_names: Generator = field(init=False)
    frames: int = 0

    def __post_init__(self) -> None:
        self.to_broker = Generator("broker", self.seed, _OTHERS)
        self.to_names = Generator("nameserver", self.seed + 1, _OTHERS)

    def throw(self, target: Target, seconds: float) -> None:
        """Throws until the time is over. Most requests go to the broker."""
        throwers = [
            FrameThrower(target.broker, self.to_broker),
            FrameThrower(target.nameserver, self.to_names),
        ]
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            for thrower in (throwers[0], *throwers):
                for _ in range(TURN):
                    thrower.throw()
        self.frames += sum(thrower.frames for thrower in throwers)
        for thrower in throwers:
            thrower.close()

    def codes(self) -> Counter[int]:
        return self.to_broker.counts + self.to_names.counts


@dataclass
class Attacked:
    """One broker after the other on the same data and the same ports, with one healthy client beside."""

    home: Path
    settings: Mapping[str, object]
    seed: int
    problems: list[str] = field(default_factory=list)
    """Whatever went wrong, with the request that did it if the log names one."""
    acknowledged: int = 0
    starts: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        self.throwers = Throwers(self.seed)
        self._ports = (free_port(), free_port(neighbours=(-2,)))

    def run(self, burst_s: float, ends: Sequence[End], say: Callable[[str], None]) -> None:
        """Attacks once before each end and once after the last, and then ends it in order."""
        broker = self._start()
        try:
            with HealthyClient(broker.broker, broker.nameserver) as client:
                for number, end in enumerate((*ends, None)):
                    self._burst(broker, client, burst_s)
                    say(f"{number}: {self.throwers.frames:,} requests, {self.peak / MIB:.0f} MiB")
                    if end is not None:
                        self._end(broker, end)
                        broker = self._start()
                        self._settle(client)
                verdict = client.check()
            self.acknowledged = verdict.acknowledged
            self.problems += verdict.problems
            self._end(broker, "stop")
            # The broker must also start after the last burst.
            broker = self._start()
            self._end(broker, "stop")
        finally:
            if broker.child.alive:
                broker.kill()

    def _start(self) -> Serving:
        """Raises RuntimeError or TimeoutError if the broker does not start on what it has stored."""
        self.starts += 1
        return Serving(
            self.home / "home", self.home / "data", flush="async", settings=self.settings, ports=self._ports
        )

    def _burst(self, broker: Serving, client: HealthyClient, seconds: float) -> None:
        target = Target(broker.broker, broker.nameserver, broker.child.log)
        client.window()
        with MemoryWatch(broker.pid) as memory:
            before = memory.now()
            self.throwers.throw(target, seconds)
            window = client.window()
            peak = memory.take_peak()
        self.peak = max(self.peak, peak)
        self._judge(broker, window)
        with target.connect() as asking:
            reported = runtime_info(asking)
        budget = int(reported["connectionMemoryBytesMax"]) + int(reported["clientsMemoryBytesMax"])
        if peak > before + budget + SLACK_BYTES:
            self.problems.append(
                f"memory: {before / MIB:.0f} before, peak {peak / MIB:.0f}, budget {budget / MIB:.0f} MiB"
            )

    def _judge(self, broker: Serving, window: Window) -> None:
        if window.failure_count:
            self.problems.append(
                f"{window.failure_count} requests of the healthy client failed: {window.failures[:3]}"
            )
        self.problems += complaints(broker.log())

    def _end(self, broker: Serving, end: End) -> None:
        if end == "kill":
            broker.kill()
        elif (code := broker.stop()) != 0:
            self.problems.append(f"the broker ended with {code}")
        self.problems += [text for text in complaints(broker.log()) if text not in self.problems]

    def _settle(self, client: HealthyClient) -> None:
        """Waits until the client is well again: its connections ended with the broker."""
        ends_at = time.monotonic() + HEALTHY_AGAIN_S
        while (window := client.window()).failure_count:
            if time.monotonic() > ends_at:
                raise TimeoutError(f"the healthy client fails after a restart: {window.failures[:3]}")


def complaints(log: str) -> list[str]:
    """The first traceback or panic of a log, with the lines around it."""
    found = _COMPLAINT.search(log)
    if found is None:
        return []
    count = len(_COMPLAINT.findall(log))
    around = log[log.rfind("\n", 0, max(0, found.start() - 1)) + 1 : found.start() + _CONTEXT_BYTES]
    return [f"{count} tracebacks or panics, the first one:\n{around}"]
