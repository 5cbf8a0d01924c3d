"""Options of `format("metaq")`. They are checked before any work; errors name the option and its values.

An option that spark-sql-kafka also has has the same name. Spark ignores the case of names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from metaq.client.consumer.subscription import Subscription as Filter
from metaq.client.message import check_group, check_topic
from metaq.errors import InvalidMessage
from metaq.protocol.errors import Refused
from metaq.spark.errors import OptionError
from metaq.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS, PROPERTIES
from metaq.spark.source.offsets import (
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    GroupOffset,
    Latest,
    Position,
    parse_assignment,
    parse_position,
    parse_positions,
    parse_time,
)

DEFAULT_NAMESERVERS: Final = "127.0.0.1:9876"

Parser = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """How the text of an option is read, and which values an error lists."""

    parse: Parser
    accepted: str


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("it is less than 1")
    return number


def truth(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def seconds(text: str) -> float:
    """`30s`, `15 minutes`, `500ms`; a bare number is in seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS_S:
        raise ValueError("it is not a span of time")
    return float(found[1]) * _UNITS_S[found[2]]


_UNITS_S: Final = {
    **dict.fromkeys(("", "s", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


def one_of(*words: str) -> Kind:
    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError("it is another word")
        return text.strip().lower()

    return Kind(parse, " or ".join(words))


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ValueError("it names no topic")
    for topic in topics:
        check_topic(topic)
    return topics


def _columns(text: str) -> tuple[str, ...]:
    names = {name.lower(): name for name in COLUMN_NAMES}
    chosen = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in chosen if word.lower() not in names]
    if unknown or not chosen:
        raise ValueError(f"there is no column {', '.join(unknown)}" if unknown else "it names no column")
    columns = tuple(names[word.lower()] for word in chosen)
    if len(set(columns)) < len(columns):
        raise ValueError("it names a column twice")
    return columns


def _sql(text: str) -> str:
    from metaq.broker.sql92 import compile_expression

    compile_expression(text)
    return text


def _tags(text: str) -> str:
    Filter.of("any", tags=text)
    return text


def _group(text: str) -> str:
    check_group(text)
    return text


def _start(text: str) -> Position:
    if text.strip().lower() == "group":
        return GroupOffset()
    return AtOffsets(parse_positions(text, lowest=-2)) if _is_json(text) else parse_position(text)


def _end(text: str) -> Position:
    if _is_json(text):
        return AtOffsets(parse_positions(text, lowest=-1))
    position = parse_position(text)
    if isinstance(position, Earliest):
        raise ValueError("nothing is before the earliest message")
    return position


def _is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def _pattern(text: str) -> str:
    re.compile(text)
    return text


_OFFSETS_SHAPE: Final = '{"topic": {"broker": {"0": 23}}}'
_TIME_SHAPE: Final = "milliseconds since 1970, a time as 2026-01-31T08:00:00Z, or a span back as -10 minutes"
_NUMBER: Final = Kind(positive, "a whole number from 1 on")
_TRUTH: Final = Kind(truth, "true or false")
_SPAN: Final = Kind(seconds, "a span of time such as 30s, 500ms or 15 minutes")

COMMON: Final[dict[str, Kind]] = {
    "nameservers": Kind(str, "host:port, several separated by semicolons"),
    "timeout": _SPAN,
}
"""Options that source and sink share."""

SOURCE: Final[dict[str, Kind]] = {
    **COMMON,
    "subscribe": Kind(_topics, "topics, separated by commas"),
    "subscribePattern": Kind(_pattern, "a regular expression that whole names of topics match"),
    "assign": Kind(parse_assignment, 'queues, as {"topic": {"broker": [0, 1]}}'),
    "startingOffsets": Kind(
        _start,
        f"earliest, latest, group, a time such as -10m, an offset, or {_OFFSETS_SHAPE}, "
        "where -1 is latest and -2 earliest",
    ),
    "endingOffsets": Kind(
        _end, f"latest, a time such as -10m, an offset, or {_OFFSETS_SHAPE}, where -1 is latest"
    ),
    "startingTimestamp": Kind(parse_time, _TIME_SHAPE),
    "endingTimestamp": Kind(parse_time, _TIME_SHAPE),
    "startingOffsetsByTimestamp": Kind(
        lambda text: parse_positions(text, lowest=0), f"{_OFFSETS_SHAPE} with milliseconds since 1970"
    ),
    "endingOffsetsByTimestamp": Kind(
        lambda text: parse_positions(text, lowest=0), f"{_OFFSETS_SHAPE} with milliseconds since 1970"
    ),
    "startingOffsetsByTimestampStrategy": one_of("error", "latest"),
    "group": Kind(_group, "the name of a consumer group"),
    "commitGroupOffsets": _TRUTH,
    "minPartitions": _NUMBER,
    "maxRecordsPerPartition": _NUMBER,
    "tags": Kind(_tags, "a tag, or several separated by ||"),
    "sql": Kind(_sql, "an expression in SQL92"),
    "columns": Kind(_columns, f"some of {', '.join(COLUMN_NAMES)}, separated by commas"),
    "includeProperties": one_of("true", "false", "all"),
    "failOnDataLoss": _TRUTH,
    "failOnUnreadableBody": _TRUTH,
    "readFrom": one_of("master", "replica"),
    "maxOffsetsPerTrigger": _NUMBER,
    "minOffsetsPerTrigger": _NUMBER,
    "maxTriggerDelay": _SPAN,
    "maxBytesPerTrigger": _NUMBER,
}

STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "commitGroupOffsets",
)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def read_options(given: Mapping[str, str], known: Mapping[str, Kind]) -> dict[str, Any]:
    """Returns the values by the proper names of the options. Raises OptionError."""
    names = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    for written, text in given.items():
        name = names.get(written.lower())
        if name is None:
            near = difflib.get_close_matches(written.lower(), names, 1)
            hint = f"did you mean {names[near[0]]}?" if near else f"it has {', '.join(sorted(known))}"
            raise OptionError(f'format("metaq") has no option {written}', hint=hint)
        values[name] = _value(name, text, known[name])
    return values


def _value(name: str, text: str, kind: Kind) -> Any:
    try:
        return kind.parse(str(text))
    except (ValueError, KeyError, re.error, InvalidMessage, Refused) as error:
        # The lines after the first only point at a place in the text.
        reason = "" if isinstance(error, KeyError) else f" ({str(error).partition(chr(10))[0]})"
        raise OptionError(
            f"option {name} cannot be {_short(text)}{reason}", hint=f"it takes {kind.accepted}"
        ) from None


def _short(text: object) -> str:
    shown = repr(str(text))
    return shown if len(shown) <= 200 else f"{shown[:200]}…"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The topics and queues that are read."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, Mapping[str, frozenset[int]]] | None = None

    def covers(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.assigned if self.assigned is not None else self.topics)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern}"
        return ", ".join(self.assigned if self.assigned is not None else self.topics)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything that a reader needs to know."""

    subscribed: Subscribed
    start: Position
    end: Position
    nameservers: str = DEFAULT_NAMESERVERS
    timeout_s: float = 60.0
    """How long to wait for brokers that cannot be reached."""
    strategy: Literal["error", "latest"] = "error"
    group: str | None = None
    commits: bool = True
    partitions_min: int | None = None
    partition_records_max: int | None = None
    tags: str | None = None
    sql: str | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    shows_system_properties: bool = False
    fails_on_data_loss: bool = True
    fails_on_unreadable_body: bool | None = None
    """None is the same as `fails_on_data_loss`."""
    prefers_replicas: bool = False
    trigger_offsets_max: int | None = None
    trigger_offsets_min: int | None = None
    trigger_delay_s_max: float = 900.0
    trigger_bytes_max: int | None = None

    def filter(self, topic: str) -> Filter:
        return Filter.of(topic, tags=self.tags, sql=self.sql)

    @property
    def is_filtered(self) -> bool:
        return self.sql is not None or bool(self.tags and self.filter("any").tags)


def source_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Reads the options of a batch or a stream; `streaming` None means that this is not known yet. Raises
    OptionError."""
    values = read_options(given, SOURCE)
    if streaming is not None:
        _refuse_other_kind(values, streaming=streaming)
    _at_most_one(values, ("subscribe", "subscribePattern", "assign"))
    _at_most_one(values, ("tags", "sql"))
    _at_most_one(values, ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"))
    _at_most_one(values, ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"))
    start: Position = _position(values, "starting", Latest() if streaming else Earliest())
    if streaming is False and _is_latest(start):
        raise OptionError(
            "option startingOffsets cannot be latest in a batch, which would be empty",
            hint="it takes earliest, group or offsets",
        )
    if isinstance(start, GroupOffset) and "group" not in values:
        raise OptionError("startingOffsets=group needs a group", hint="give the option group")
    if values.get("commitGroupOffsets") and "group" not in values:
        raise OptionError("commitGroupOffsets=true needs a group", hint="give the option group")
    most, least = values.get("maxOffsetsPerTrigger"), values.get("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger is {least} and maxOffsetsPerTrigger {most}",
            hint="the first may not be more",
        )
    properties = values.get("includeProperties", "false")
    columns: tuple[str, ...] = values.get("columns", DEFAULT_COLUMNS)
    if properties != "false" and PROPERTIES not in columns:
        columns = (*columns, PROPERTIES)
    return SourceOptions(
        subscribed=_subscribed(values),
        start=start,
        end=_position(values, "ending", Latest()),
        columns=columns,
        shows_system_properties=properties == "all",
        prefers_replicas=values.get("readFrom") == "replica",
        **{field: values[name] for name, field in _PLAIN.items() if name in values},
    )


_PLAIN: Final = {
    "nameservers": "nameservers",
    "timeout": "timeout_s",
    "startingOffsetsByTimestampStrategy": "strategy",
    "group": "group",
    "commitGroupOffsets": "commits",
    "minPartitions": "partitions_min",
    "maxRecordsPerPartition": "partition_records_max",
    "tags": "tags",
    "sql": "sql",
    "failOnDataLoss": "fails_on_data_loss",
    "failOnUnreadableBody": "fails_on_unreadable_body",
    "maxOffsetsPerTrigger": "trigger_offsets_max",
    "minOffsetsPerTrigger": "trigger_offsets_min",
    "maxTriggerDelay": "trigger_delay_s_max",
    "maxBytesPerTrigger": "trigger_bytes_max",
}


def _refuse_other_kind(values: Mapping[str, Any], *, streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name in values:
            kind, other = ("a stream", "batches") if streaming else ("a batch", "streams")
            raise OptionError(
                f"option {name} has no meaning in {kind}", hint=f"it is for {other}: leave it out"
            )


def _at_most_one(values: Mapping[str, Any], names: Iterable[str]) -> None:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} exclude each other", hint=f"leave {given[-1]} out")


def _subscribed(values: Mapping[str, Any]) -> Subscribed:
    if "subscribe" in values:
        return Subscribed(topics=values["subscribe"])
    if "subscribePattern" in values:
        return Subscribed(pattern=values["subscribePattern"])
    if "assign" in values:
        return Subscribed(assigned=values["assign"])
    raise OptionError("no topic is given", hint="give one of subscribe, subscribePattern and assign")


def _position(values: Mapping[str, Any], side: str, default: Position) -> Position:
    if f"{side}Timestamp" in values:
        return AtTime(values[f"{side}Timestamp"])
    if f"{side}OffsetsByTimestamp" in values:
        return AtTimes(values[f"{side}OffsetsByTimestamp"])
    position: Position = values.get(f"{side}Offsets", default)
    return position


def _is_latest(position: Position) -> bool:
    if isinstance(position, AtOffsets):
        return any(offset == -1 for offset in position.offsets.values())
    return isinstance(position, Latest)
