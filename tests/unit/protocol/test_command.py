"""Headers: typed on our side, strings on the wire."""

from __future__ import annotations

import types
import typing

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from metaq.protocol.command import Command, Fields, commands
from metaq.protocol.commands import (  # noqa: F401  # imported so that `commands` knows them
    admin,
    clients,
    cluster,
    groups,
    messages,
    offsets,
    routes,
    topics,
)
from metaq.protocol.commands.cluster import BrokerHeartbeat, RegisterBroker
from metaq.protocol.commands.messages import PullMessage, SendMessage, SendMessageV2, Sent
from metaq.protocol.commands.offsets import QueueOffset
from metaq.protocol.commands.routes import GetRouteInfoByTopic
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.ranges import Int32

VALUES = {
    str: st.text(max_size=20),
    bool: st.booleans(),
    int: st.integers(0, 255),
    type(None): st.none(),
}


def values_of(kind: object) -> st.SearchStrategy[object]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return st.one_of([values_of(part) for part in typing.get_args(kind)])
    if typing.get_origin(kind) is typing.Annotated:
        return values_of(typing.get_args(kind)[0])
    return VALUES[kind]  # type: ignore[index]


def test_names_become_camel_case() -> None:
    command = GetRouteInfoByTopic("T", accept_standard_json_only=True)
    assert command.to_fields() == {"topic": "T", "acceptStandardJsonOnly": "true"}


def test_names_that_differ() -> None:
    assert QueueOffset(7).to_fields() == {"offset": "7"}
    assert SendMessageV2("g", "t").to_fields()["b"] == "t"
    assert (
        RegisterBroker.parse(
            {"brokerName": "b", "brokerAddr": "a", "clusterName": "c", "brokerId": "0", "bodyCrc32": "9"}
        ).body_crc32
        == 9
    )
    assert (
        BrokerHeartbeat("c", "a", "b", heartbeat_timeout_millis=3).to_fields()["heartbeatTimeoutMills"] == "3"
    )


def test_the_wire_of_a_send() -> None:
    fields = {"producerGroup": "g", "topic": "t", "queueId": "3", "unitMode": "false", "batch": "true"}
    command = SendMessage.parse(fields | {"bname": "ignored", "ns": ""})
    assert (command.queue_id, command.unit_mode, command.batch, command.max_reconsume_times) == (
        3,
        False,
        True,
        None,
    )
    assert command.to_fields().items() >= fields.items()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "PullMessage: missing required field `consumerGroup`"),
        ({"queueId": "x"}, "field queueId: expected `int`"),
        ({"queueId": "2147483648"}, "field queueId: expected `int` <= 2147483647"),
        ({"queueOffset": str(2**63)}, "field queueOffset"),
        ({"queueId": ""}, "missing required field `queueId`"),
    ],
)
def test_what_cannot_be_read_is_named(fields: dict[str, str], words: str) -> None:
    whole = {"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0"}
    with pytest.raises(ProtocolError) as caught:
        PullMessage.parse(whole | fields if fields else {})
    assert words in caught.value.remark
    assert caught.value.code == 29
    assert isinstance(caught.value, Refused)


def test_an_empty_value_is_none_unless_it_is_text() -> None:
    command = SendMessage.parse(
        {"producerGroup": "", "topic": "t", "queueId": "", "maxReconsumeTimes": "", "unitMode": ""}
    )
    assert (command.producer_group, command.queue_id, command.max_reconsume_times) == ("", 0, None)


def test_keywords_of_the_class_statement() -> None:
    class Reply(Fields):
        count: Int32

    class Example(
        Command, code=-7, permission="admin", resources={"name": "topic"}, to="client", hot=True, reply=Reply
    ):
        name: str

    assert (Example.code, Example.permission, Example.to, Example.hot) == (-7, "admin", "client", True)
    assert Example.resources == {"name": "topic"}
    assert Example.reply is Reply
    assert Example("x") == Example.parse({"name": "x"})
    assert GetRouteInfoByTopic.reply is None
    assert SendMessage.reply is Sent


@given(st.data())
def test_every_command_survives_the_wire(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([c for c in commands() if c.code >= 0]))
    hints = typing.get_type_hints(kind, include_extras=True)
    values = {
        info.name: data.draw(values_of(hints[info.name]), label=info.name)
        for info in msgspec.structs.fields(kind)
    }
    command = kind(**values)
    assert kind.parse(command.to_fields()) == command


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=30)), st.data())
def test_any_fields_parse_or_are_refused(fields: dict[str, str], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([c for c in commands() if c.code >= 0]))
    for name in kind.__struct_encode_fields__:
        fields[name] = data.draw(st.text(max_size=10))
    try:
        kind.parse(fields)
    except ProtocolError as error:
        assert kind.__name__ in error.remark
