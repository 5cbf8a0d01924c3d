"""Messages in and out by topic and group, over the last minute, hour and day.

Nothing is counted per message here. Every few seconds the queue ends and the committed offsets are sampled;
their growth is the number of messages.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from metaq._core import Clock, Listener, ListenerFigures, Store
from metaq.protocol.bodies import BrokerStatsData, BrokerStatsItem
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.admin import ViewBrokerStatsData
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused

SAMPLE_INTERVAL_S = 10.0

TOPIC_PUT = "TOPIC_PUT_NUMS"
GROUP_GET = "GROUP_GET_NUMS"
BROKER_PUT = "BROKER_PUT_NUMS"
BROKER_GET = "BROKER_GET_NUMS"
KEPT = (TOPIC_PUT, GROUP_GET, BROKER_PUT, BROKER_GET)


class Window:
    """Samples of a growing sum, as far back as the window reaches."""

    def __init__(self, step_ms: int, steps: int) -> None:
        self._step_ms = step_ms
        self._moments: deque[tuple[int, int]] = deque(maxlen=steps + 1)

    def note(self, now_ms: int, total: int) -> None:
        if not self._moments or now_ms - self._moments[-1][0] >= self._step_ms:
            self._moments.append((now_ms, total))

    def since_begin(self, now_ms: int, total: int) -> BrokerStatsItem:
        """The growth within the window, up to now."""
        if not self._moments:
            return BrokerStatsItem()
        began_ms, before = self._moments[0]
        passed_ms = now_ms - began_ms
        grown = max(total - before, 0)
        return BrokerStatsItem(sum=grown, tps=round(grown * 1000 / passed_ms, 2) if passed_ms > 0 else 0.0)


@dataclass(slots=True)
class Series:
    """One sum and its three windows."""

    total: int = 0
    minute: Window = field(default_factory=lambda: Window(int(SAMPLE_INTERVAL_S * 900), 6))
    hour: Window = field(default_factory=lambda: Window(10 * 60_000, 6))
    day: Window = field(default_factory=lambda: Window(60 * 60_000, 24))
    noted_ms: int = 0

    def note(self, now_ms: int) -> None:
        self.noted_ms = now_ms
        for window in (self.minute, self.hour, self.day):
            window.note(now_ms, self.total)

    def minute_rate(self) -> float:
        return float(self.minute.since_begin(self.noted_ms, self.total).tps)

    def data(self) -> BrokerStatsData:
        return BrokerStatsData(
            stats_minute=self.minute.since_begin(self.noted_ms, self.total),
            stats_hour=self.hour.since_begin(self.noted_ms, self.total),
            stats_day=self.day.since_begin(self.noted_ms, self.total),
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second over the last minute. What is not listed had none."""

    topic_in: Mapping[str, float]
    topic_out: Mapping[str, float]
    """Taken by all groups together."""
    pair_out: Mapping[str, float]
    """By `topic@group`."""


class Statistics:
    """Samples queue ends and the listener's figures, and counts the growth of committed offsets."""

    def __init__(self, listener: Listener, store: Store, clock: Clock, cluster: str) -> None:
        self._listener = listener
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._series: dict[tuple[str, str], Series] = {}
        self._ends: dict[str, dict[int, int]] = {}
        self._committed: dict[str, dict[int, int]] = {}
        self._consumed: dict[str, int] = {}
        """Messages that groups have consumed since the last sample, by `topic@group`."""
        self._forgotten: set[str] = set()
        """`topic@group` whose offsets were removed since then."""
        self._counting = threading.Lock()
        self._sampled_ms: int | None = None
        self._samples = 0
        self._rates: tuple[int, Rates] | None = None
        """The rates as of that number of samples."""
        self._day: tuple[int, ...] = ()
        self.mornings = {"put_yesterday": 0, "put_today": 0, "get_yesterday": 0, "get_today": 0}
        """The sums at the beginning of today and of yesterday, or at the start of this broker."""

    def count_committed(self, changed: Mapping[str, Mapping[int, int]]) -> None:
        """Counts the messages between the known offsets and the changed ones. The first offset of a queue
        counts nothing."""
        with self._counting:
            for key, committed in changed.items():
                if not committed:
                    self._committed.pop(key, None)
                    self._consumed.pop(key, None)
                    self._forgotten.add(key)
                    continue
                known = self._committed.get(key, {})
                grown = sum(
                    max(place - known.get(queue_id, place), 0) for queue_id, place in committed.items()
                )
                self._consumed[key] = self._consumed.get(key, 0) + grown
                self._forgotten.discard(key)
                self._committed[key] = dict(committed)

    def sample(self) -> None:
        """Takes one sample; called every `SAMPLE_INTERVAL_S`, from one thread at a time."""
        now_ms = self._clock.now_ms()
        grown: dict[tuple[str, str], int] = {}
        found: dict[str, dict[int, int]] = {}
        for topic, ends in self._store.queue_ends().items():
            grown[TOPIC_PUT, topic] = self._put_since(topic, ends)
            found[topic] = dict(ends)
        # This forgets deleted topics.
        self._ends = found
        with self._counting:
            consumed, self._consumed = self._consumed, {}
            forgotten, self._forgotten = self._forgotten, set()
        gone = {(GROUP_GET, key) for key in forgotten}
        gone |= {key for key in self._series if key[0] == TOPIC_PUT and key not in grown}
        grown |= {(GROUP_GET, key): amount for key, amount in consumed.items()}
        figures = self._listener.figures()
        self._sampled_ms = now_ms
        for key in gone - grown.keys():
            self._series.pop(key, None)
        self._note(grown, figures, now_ms)
        self._turn_day(figures, now_ms)
        self._samples += 1

    def _put_since(self, topic: str, ends: Mapping[int, int]) -> int:
        if self._sampled_ms is None:
            return 0
        known = self._ends.get(topic, {})
        total = 0
        for queue_id, end in ends.items():
            before = known.get(queue_id)
            if before is None:
                # A queue without a sample so far: the store times of its messages tell when they came.
                before = self._store.search_offset(topic, queue_id, self._sampled_ms)
            total += max(end - before, 0)
        return total

    def _note(self, grown: Mapping[tuple[str, str], int], figures: ListenerFigures, now_ms: int) -> None:
        for name, total in ((BROKER_PUT, figures.messages_in), (BROKER_GET, figures.messages_out)):
            self._series.setdefault((name, self._cluster), Series()).total = total
        for key, amount in grown.items():
            if amount and key not in self._series:
                self._series[key] = Series()
                self._series[key].note(now_ms - int(SAMPLE_INTERVAL_S * 1000))
            if key in self._series:
                self._series[key].total += amount
        for series in self._series.values():
            series.note(now_ms)

    def _turn_day(self, figures: ListenerFigures, now_ms: int) -> None:
        day = time.localtime(now_ms / 1000)[:3]
        if self._day and day != self._day:
            self.mornings = {
                "put_yesterday": self.mornings["put_today"],
                "put_today": figures.messages_in,
                "get_yesterday": self.mornings["get_today"],
                "get_today": figures.messages_out,
            }
        self._day = day

    def moved(self, topic: str, group: str, places: Mapping[int, int]) -> None:
        """Notes a reset by an administrator: the messages that it skipped were not consumed."""
        with self._counting:
            self._committed.setdefault(f"{topic}@{group}", {}).update(places)

    def data(self, name: str, key: str) -> BrokerStatsData | None:
        series = self._series.get((name, key))
        return series.data() if series is not None else None

    def per_second(self, name: str, key: str) -> float:
        """The rate over the last minute."""
        data = self.data(name, key)
        return float(data.stats_minute.tps) if data is not None else 0.0

    def rates(self) -> Rates | None:
        """The rates of all topics and groups; None before there are two samples. The cost grows with the
        broker: for work off the event loop."""
        samples, known = self._samples, self._rates
        if samples < 2:
            return None
        if known is not None and known[0] == samples:
            return known[1]
        topic_in: dict[str, float] = {}
        topic_out: dict[str, float] = {}
        pair_out: dict[str, float] = {}
        # A copy, because samples are taken on another thread.
        for (name, key), series in list(self._series.items()):
            if name == TOPIC_PUT:
                topic_in[key] = series.minute_rate()
            elif name == GROUP_GET:
                pair_out[key] = series.minute_rate()
                topic = key.partition("@")[0]
                topic_out[topic] = topic_out.get(topic, 0.0) + pair_out[key]
        rates = Rates(topic_in, topic_out, pair_out)
        self._rates = (samples, rates)
        return rates

    def broker_triple(self, name: str) -> str:
        """The broker's rates over a minute, an hour and a day, as tools show them."""
        data = self.data(name, self._cluster) or BrokerStatsData()
        return f"{data.stats_minute.tps} {data.stats_hour.tps} {data.stats_day.tps}"

    @handles(ViewBrokerStatsData)
    def view_broker_stats_data(self, command: ViewBrokerStatsData, request: Request) -> Response:
        if command.stats_name not in KEPT:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"statistics {command.stats_name[:64]!a} are not kept; these are: {', '.join(KEPT)}",
            )
        data = self.data(command.stats_name, command.stats_key)
        if data is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"statistics {command.stats_name} know nothing of {command.stats_key[:300]!a} so far",
            )
        return Response(body=data.encode())
