"""The time of sends while nobody and while ten people look at the console, in alternating rounds.

A viewer does what an open page does: it holds the stream of events, and asks for its page again at each one.
The broker has 10,000 topics and 2,000 groups, and the console polls it at its default interval.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bench.servers import READY_TIMEOUT_S, ready_line
from bench.single_sends import single_sends
from bench.workloads import Outcome, Plan, say
from tests.support.console_links import console_links
from tests.support.many_topics import group, topic, write_files
from tests.support.processes import Child
from tests.support.visitor import TIMEOUT_S, Visitor

VIEWERS = 10
PAGES = ("/", "/topics", "/groups", "/dead-letters", "/cluster", f"/topics/{topic(7)}", f"/groups/{group(7)}")
SIDES = {"ten viewers": VIEWERS, "no viewer": 0}


def console(plan: Plan) -> Outcome:
    """Times of single sends, with ten viewers of the console and without."""
    home = plan.home / "console"
    write_files(home / "data" / "config")
    serve = [str(plan.options.metaq), "serve", "--host", "127.0.0.1", "--flush", plan.options.flush]
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "console=true", "--console-port", "0")
    child = Child([*serve, *ports, "--data", str(home / "data")], home / "serve.log")
    outcome = Outcome("console")
    try:
        ready = json.loads(child.wait_for(ready_line, READY_TIMEOUT_S, "METAQ_READY line"))
        visitor = Visitor(ready["console"])
        visitor.follow(console_links(ready).viewer)
        single_sends(ready["broker"], topic(0), plan.client_warmup_s)
        for number in range(1, plan.rounds + 1):
            for side, viewers in SIDES.items():
                with _watching(visitor, viewers) as shown:
                    figures = single_sends(ready["broker"], topic(0), plan.round_s)
                outcome.add(side, figures)
                say(
                    f"console  round {number} {side:<12} p50 {figures['p50_ms']:6.3f} ms, "
                    f"p99 {figures['p99_ms']:6.3f} ms, pages shown {len(shown)}"
                )
    finally:
        child.stop(timeout_s=60)
    return outcome


@contextmanager
def _watching(visitor: Visitor, viewers: int) -> Iterator[list[str]]:
    """Lets this many people look. Yields the pages that they were shown."""
    shown: list[str] = []
    over = threading.Event()
    with ThreadPoolExecutor(max(viewers, 1)) as pool:
        watching = [
            pool.submit(_watch, visitor, PAGES[number % len(PAGES)], shown, over) for number in range(viewers)
        ]
        try:
            yield shown
        finally:
            over.set()
        for viewer in watching:
            viewer.result()


def _watch(visitor: Visitor, page: str, shown: list[str], over: threading.Event) -> None:
    connection = visitor.connect()
    try:
        connection.request("GET", "/events", headers=visitor.headers())
        # The stream says something every 15 seconds at least.
        stream = connection.getresponse()
        while not over.is_set():
            line = stream.readline()
            if line.startswith(b"event: "):
                assert visitor.get(page).status == 200, page
                shown.append(page)
            elif not line:
                raise ConnectionError(f"the stream of events ended within {TIMEOUT_S:g} s")
    finally:
        connection.close()
