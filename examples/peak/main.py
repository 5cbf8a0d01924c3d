"""Peak shaving: a burst goes into the broker at once, and comes out at the rate that the consumer may take.

    python examples/peak/main.py --picture peak.svg
    python examples/peak/main.py --namesrv 127.0.0.1:9876    # uses a running broker (`metaq serve`)

The broker slows the group down. Neither producer nor consumer has code for it.
"""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import metaq
from metaq.admin import Admin
from metaq.testing import LocalMetaq

TOPIC, GROUP = "PeakOrders", "peak-billing"
STEP_S = 0.25


class Meter:
    """Counts events by time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._lock = threading.Lock()

    def count(self, events: int = 1) -> None:
        with self._lock:
            self._times += [time.monotonic()] * events

    @property
    def total(self) -> int:
        return len(self._times)

    @property
    def span(self) -> tuple[float, float]:
        return self._times[0], self._times[-1]

    def rates(self, begin: float, end: float) -> list[float]:
        """Returns events per second, for each step."""
        counts = [0] * (int((end - begin) / STEP_S) + 1)
        for at in self._times:
            counts[int((at - begin) / STEP_S)] += 1
        return [count / STEP_S for count in counts]


def picture(sent: list[float], taken: list[float], limit: int) -> str:
    """Draws both rates as SVG."""
    width, height, top = 720, 300, max(*sent, *taken, 1.0)

    def line(rates: list[float], colour: str) -> str:
        step = (width - 60) / max(len(rates) - 1, 1)
        points = " ".join(
            f"{40 + number * step:.1f},{height - 30 - rate / top * (height - 60):.1f}"
            for number, rate in enumerate(rates)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'

    level = height - 30 - limit / top * (height - 60)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            ' font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<path d="M40 20V{height - 30}H{width - 20}" fill="none" stroke="black"/>',
            f'<path d="M40 {level:.1f}H{width - 20}" stroke="grey" stroke-dasharray="4"/>',
            f'<text x="44" y="{level - 4:.1f}" font-size="11" fill="grey">limit {limit:,}/s</text>',
            line(sent, "crimson"),
            line(taken, "steelblue"),
            f'<text x="{width - 200}" y="30" fill="crimson">sent, at most {max(sent):,.0f}/s</text>',
            f'<text x="{width - 200}" y="48" fill="steelblue">consumed</text>',
            f'<text x="{width // 2}" y="{height - 8}" font-size="11">{len(sent) * STEP_S:.1f} seconds</text>',
            "</svg>\n",
        )
    )


def bars(rates: list[float], top: float) -> str:
    """Returns one character for each step."""
    return "".join(" ▁▂▃▄▅▆▇█"[min(8, -int(-rate * 8 // top))] for rate in rates)


def main() -> None:
    parser = argparse.ArgumentParser(description="A burst, drained at a set rate by the broker.")
    parser.add_argument(
        "--namesrv", help="name server of a running broker; by default a broker is started here"
    )
    parser.add_argument("--messages", type=int, default=5_000, help="messages of the burst")
    parser.add_argument("--limit", type=int, default=1_000, help="messages per second for the consumer")
    parser.add_argument("--picture", type=Path, help="write both rates to this SVG file")
    given = parser.parse_args()
    sent, taken = Meter(), Meter()
    with ExitStack() as stack:
        namesrv = given.namesrv or stack.enter_context(LocalMetaq()).nameserver
        admin = stack.enter_context(Admin(namesrv))
        # The same as `metaq group limit peak-billing --messages-per-second 1000 --create`.
        admin.groups.create(GROUP)
        admin.groups.limit(GROUP, messages_per_second=given.limit)
        client = metaq.Client(namesrv)

        @client.consumer(TOPIC, group=GROUP, start="earliest")
        def bill(message: metaq.Message) -> None:
            taken.count()

        stack.enter_context(client)
        with client.producer("peak") as producer:
            for number in range(given.messages):
                producer.send_soon(TOPIC, b"%d" % number).add_done_callback(lambda future: sent.count())
            producer.flush()
        while taken.total < given.messages:
            time.sleep(0.05)
    begin = min(sent.span[0], taken.span[0])
    end = max(sent.span[1], taken.span[1])
    rates = sent.rates(begin, end), taken.rates(begin, end)
    top = max(*rates[0], *rates[1])
    print(f"sent     {bars(rates[0], top)}  {sent.total:,} in {sent.span[1] - sent.span[0]:.2f} s")
    print(f"consumed {bars(rates[1], top)}  {taken.total:,} in {taken.span[1] - taken.span[0]:.2f} s")
    if given.picture is not None:
        given.picture.write_text(picture(*rates, given.limit), encoding="utf-8")
        print(f"wrote {given.picture}")


if __name__ == "__main__":
    main()
