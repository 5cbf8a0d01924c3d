"""Invalid options fail before any work, and the error names the option and its accepted values."""

from __future__ import annotations

import pytest

from metaq.client.session.routes import Queue
from metaq.spark.errors import OptionError
from metaq.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS
from metaq.spark.source.offsets import AtOffset, AtOffsets, AtTime, Earliest, Latest, Time
from metaq.spark.source.options import SOURCE, SourceOptions, source_options


def options(*, streaming: bool | None = False, **given: str) -> SourceOptions:
    return source_options({"subscribe": "orders", **given}, streaming=streaming)


def test_nothing_but_a_topic() -> None:
    batch, stream = options(), options(streaming=True)
    assert (batch.start, batch.end) == (Earliest(), Latest())
    assert stream.start == Latest(), "as with Kafka's source"
    assert batch.columns == DEFAULT_COLUMNS
    assert batch.fails_on_data_loss
    assert not batch.is_filtered


def test_everything_at_once() -> None:
    found = source_options(
        {
            "NAMESERVERS": "a:1;b:2",
            "subscribe": "orders, audit,orders",
            "StartingTimestamp": "-10 minutes",
            "endingOffsets": '{"orders": {"b": {"0": 7}}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "group": "billing",
            "minPartitions": "4",
            "maxRecordsPerPartition": "1000",
            "tags": "a || b",
            "columns": "BODY, queueOffset",
            "includeProperties": "all",
            "failOnDataLoss": "FALSE",
            "readFrom": "replica",
            "timeout": "500ms",
        },
        streaming=False,
    )
    assert found.subscribed.topics == ("orders", "audit")
    assert found.start == AtTime(Time(600_000, is_relative=True))
    assert found.end == AtOffsets({Queue("orders", "b", 0): 7})
    assert found.columns == ("body", "queueOffset", "properties")
    assert found.shows_system_properties
    assert found.prefers_replicas
    assert found.is_filtered
    assert not found.fails_on_data_loss
    assert (found.strategy, found.timeout_s) == ("latest", 0.5)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Earliest()),
        (" Latest", Latest()),
        ("-10m", AtTime(Time(600_000, is_relative=True))),
        ("2023-11-14T22:13:20Z", AtTime(Time(1_700_000_000_000))),
        ("23", AtOffset(23)),
        ("first", Earliest()),
        ("end", Latest()),
        (
            '{"orders": {"b": {"0": "earliest", "1": "latest", "2": -2}}}',
            AtOffsets(
                {Queue("orders", "b", 0): -2, Queue("orders", "b", 1): -1, Queue("orders", "b", 2): -2}
            ),
        ),
    ],
)
def test_positions_have_the_words_of_client_and_command_line(text: str, position: object) -> None:
    assert options(streaming=True, startingOffsets=text).start == position
    if not isinstance(position, Earliest | AtOffsets):
        assert options(endingOffsets=text).end == position


def test_every_option_is_taken_by_one_kind_of_query_at_least() -> None:
    values = {
        "subscribePattern": "or.*",
        "assign": '{"t": {"b": [0]}}',
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "startingTimestamp": "0",
        "endingTimestamp": "0",
        "startingOffsetsByTimestamp": '{"t": {"b": {"0": 1}}}',
        "endingOffsetsByTimestamp": '{"t": {"b": {"0": 1}}}',
        "startingOffsetsByTimestampStrategy": "error",
        "tags": "a",
        "sql": "a > 1",
        "columns": "body",
        "includeProperties": "true",
        "readFrom": "master",
        "failOnDataLoss": "true",
        "failOnUnreadableBody": "true",
        "commitGroupOffsets": "false",
        "group": "g",
        "subscribe": "t",
        "nameservers": "h:1",
        "timeout": "1 minute",
        "maxTriggerDelay": "1m",
    }
    for name in SOURCE:
        topic = {} if name in ("assign", "subscribe", "subscribePattern") else {"subscribe": "t"}
        given = {name: values.get(name, "5"), **topic}
        taken = 0
        for streaming in (False, True):
            try:
                source_options(given, streaming=streaming)
                taken += 1
            except OptionError as error:
                assert f"option {name} has no meaning" in str(error)
        assert taken, name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffset": "earliest"}, "no option startingOffset; did you mean startingOffsets?"),
        ({"qqqqq": "1"}, "no option qqqqq; it has assign, columns"),
        ({"subscribe": "or ders"}, "option subscribe cannot be 'or ders'"),
        ({"subscribe": " , "}, "it takes topics, separated by commas"),
        (
            {"startingOffsets": "soon"},
            "option startingOffsets cannot be 'soon' .* it takes earliest, latest, group",
        ),
        ({"startingOffsets": '{"t": {"b": {"0": -3}}}'}, "t.b.0 is -3"),
        ({"endingOffsets": "earliest"}, "option endingOffsets cannot be 'earliest'"),
        ({"endingOffsets": '{"t": {"b": {"0": -2}}}'}, "t.b.0 is -2"),
        ({"startingOffsets": "latest"}, "cannot be latest in a batch"),
        ({"startingOffsets": '{"t": {"b": {"0": -1}}}'}, "cannot be latest in a batch"),
        ({"startingOffsets": "group"}, "needs a group; give the option group"),
        ({"startingTimestamp": "soon"}, "option startingTimestamp .* it takes milliseconds"),
        ({"startingTimestamp": "5", "startingOffsets": "earliest"}, "exclude each other"),
        ({"assign": '{"t": {"b": [0]}}'}, "subscribe and assign exclude each other"),
        ({"tags": "a", "sql": "b > 1"}, "tags and sql exclude each other"),
        ({"tags": " || "}, "option tags .* it takes a tag"),
        ({"sql": "a >"}, "option sql .* it takes an expression in SQL92"),
        ({"minPartitions": "0"}, "option minPartitions cannot be '0' .* it takes a whole number from 1 on"),
        ({"minPartitions": "many"}, "option minPartitions cannot be 'many'"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss cannot be 'yes'; it takes true or false"),
        ({"columns": "body,price"}, "there is no column price.*it takes some of topic, brokerName"),
        ({"columns": "body,BODY"}, "names a column twice"),
        ({"readFrom": "slave"}, "it takes master or replica"),
        ({"timeout": "soon"}, "option timeout"),
        ({"maxBytesPerTrigger": "5"}, "option maxBytesPerTrigger has no meaning in a batch"),
        ({"group": "a b"}, "option group"),
    ],
)
def test_what_is_wrong_with_a_batch(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source_options({"subscribe": "orders", **given}, streaming=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets has no meaning in a stream"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "minOffsetsPerTrigger is 9"),
        ({"commitGroupOffsets": "true"}, "needs a group"),
    ],
)
def test_what_is_wrong_with_a_stream(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source_options({"subscribe": "orders", **given}, streaming=True)


def test_no_topic_at_all() -> None:
    with pytest.raises(OptionError, match="give one of subscribe, subscribePattern and assign"):
        source_options({}, streaming=False)


def test_every_column_can_be_asked_for() -> None:
    assert options(columns=",".join(COLUMN_NAMES)).columns == COLUMN_NAMES
