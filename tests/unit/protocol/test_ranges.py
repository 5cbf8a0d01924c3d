"""Every number, text and list that a peer sends has its range in its type."""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest

import metaq.broker
import metaq.nameserver
import metaq.protocol
from metaq.broker.background.subscription_inquiry import RunningSubscriptions
from metaq.protocol import java_json
from metaq.protocol.bodies import (
    Body,
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
    always,
)
from metaq.protocol.command import Fields
from metaq.protocol.commands.waiting import DelayedLine, DelayedLines, TransactionLine, TransactionLines
from metaq.protocol.errors import ProtocolError
from metaq.protocol.java_json import MessageQueue
from metaq.protocol.ranges import Int32, Name, Rows

for package in (metaq.protocol, metaq.broker, metaq.nameserver):
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(info.name)


def sent_by_peers() -> list[type[msgspec.Struct]]:
    """Every header and body, and the structures inside them."""

    def below(kind: type) -> Iterator[type]:
        for subclass in kind.__subclasses__():
            if subclass.__module__.startswith("metaq."):
                yield subclass
                yield from below(subclass)

    found = [
        kind
        for kind in below(msgspec.Struct)
        if issubclass(kind, (Body, Fields)) or kind.__module__.startswith("metaq.protocol.")
    ]
    return sorted(set(found), key=lambda kind: (kind.__module__, kind.__qualname__))


def unbounded(kind: Any, meta: msgspec.Meta | None = None) -> Iterator[str]:
    """The parts of a type that have no range."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        metas = [extra for extra in arguments[1:] if isinstance(extra, msgspec.Meta)]
        yield from unbounded(arguments[0], metas[0] if metas else None)
    elif kind is int:
        if meta is None or meta.ge is None or meta.le is None:
            yield "int"
    elif kind in (str, bytes) or origin in (list, dict, tuple, set, frozenset):
        if meta is None or meta.max_length is None:
            yield str(kind)
        for part in arguments:
            yield from unbounded(part)
    elif origin in (typing.Union, types.UnionType):
        for part in arguments:
            yield from unbounded(part)
    elif kind in (bool, float, type(None), ...) or origin is Literal:
        pass
    elif not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        yield str(kind)


def test_every_field_of_every_header_and_body_has_a_range() -> None:
    kinds = sent_by_peers()
    assert {MessageQueue, HeartbeatData} <= set(kinds)
    assert len(kinds) > 200
    faults = [
        f"{kind.__module__}.{kind.__qualname__}.{field}: {fault}"
        for kind in kinds
        for field, hint in typing.get_type_hints(kind, include_extras=True).items()
        if typing.get_origin(hint) is not typing.ClassVar
        for fault in unbounded(hint)
    ]
    assert faults == []


@pytest.mark.parametrize(
    "kind", [int, str, list[Int32], Rows[int], dict[Name, Int32], Int32 | str, Any, list]
)
def test_the_search_finds_what_has_none(kind: object) -> None:
    assert list(unbounded(kind))


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (SubscriptionGroupConfig, {"retryMaxTimes": 2**31}, "<= 2147483647 - at `$.retryMaxTimes`"),
        (SubscriptionGroupConfig, {"retryMaxTimes": -(2**31) - 1}, ">= -2147483648 - at `$.retryMaxTimes`"),
        (SubscriptionGroupConfig, {"brokerId": 2**63}, "<= 9223372036854775807 - at `$.brokerId`"),
        (
            SubscriptionGroupConfig,
            {"whichBrokerWhenConsumeSlowly": 2**63},
            "<= 9223372036854775807 - at `$.whichBrokerWhenConsumeSlowly`",
        ),
        (
            HeartbeatData,
            {"consumerDataSet": [{"subscriptionDataSet": [{"subVersion": 2**70}]}]},
            "<= 9223372036854775807 - at `$.consumerDataSet[0].subscriptionDataSet[0].subVersion`",
        ),
        (
            TopicConfigList,
            {"topicConfigList": [{"topicSysFlag": 2**80}]},
            "<= 2147483647 - at `$.topicConfigList[0].topicSysFlag`",
        ),
        (
            RegisterBrokerBody,
            {"topicConfigSerializeWrapper": {"topicConfigTable": {"t": {"perm": 10**30}}}},
            "<= 255 - at `$.topicConfigSerializeWrapper.topicConfigTable[...].perm`",
        ),
    ],
)
def test_a_value_past_its_range_is_refused_by_field_and_limit(
    kind: type[Body], body: dict[str, object], words: str
) -> None:
    for text in (msgspec.json.encode(body), msgspec.json.encode({**body, "none": None})):
        with pytest.raises(ProtocolError) as caught:
            kind.decode(text)
        assert words in caught.value.remark
        assert caught.value.code == 29


def test_lists_of_waiting_messages_hold_what_their_senders_wrote() -> None:
    """Otherwise one message of a stranger would hide all others from operators."""
    longest = "x" * 32_767
    delayed = DelayedLines(messages=[DelayedLine(id=longest, keys=[longest], tags=longest)])
    assert DelayedLines.decode(delayed.encode()) == delayed
    line = TransactionLine(
        id=longest, transaction_id=longest, producer_group=longest, keys=[longest], tags=longest
    )
    transactions = TransactionLines(transactions=[line])
    assert TransactionLines.decode(transactions.encode()) == transactions


def test_the_ends_of_a_range_are_inside_it() -> None:
    class Example(Body):
        number: Int32 = always(0)
        text: Name = always("")

    for number in (-(2**31), -1, 2**31 - 1):
        assert Example.decode(Example(number, "n" * 255).encode()) == Example(number, "n" * 255)


def parts_of(kind: Any) -> Iterator[type]:
    """The structures in a type, and whatever may hold anything."""
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or kind is object):
        yield kind
    assert kind is not Any
    for part in typing.get_args(kind):
        yield from parts_of(part)


def test_no_body_is_part_of_itself() -> None:
    """The garbage collector does not look at bodies, so a cycle would stay in memory for ever."""

    def check(kind: type[msgspec.Struct], around: tuple[type, ...]) -> None:
        assert kind not in around
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            if typing.get_origin(hint) is typing.ClassVar:
                continue
            for part in parts_of(hint):
                assert part is not object
                check(part, (*around, kind))

    kinds = [kind for kind in sent_by_peers() if issubclass(kind, (Body, MessageQueue))]
    assert len(kinds) > 60
    for kind in kinds:
        assert not kind.__struct_config__.gc
        check(kind, ())


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (TopicConfigList, b'{"topicConfigList":[%s]}'),
        (SubscriptionGroupList, b'{"groupConfigList":[%s]}'),
        (HeartbeatData, b'{"clientID":"c","producerDataSet":[%s]}'),
        (HeartbeatData, b'{"clientID":"c","consumerDataSet":[{"subscriptionDataSet":[%s]}]}'),
        (LockBatchRequestBody, b'{"mqSet":[%s]}'),
        (CheckClientRequestBody, b'{"other":[%s]}'),
        (RunningSubscriptions, b'{"subscriptionSet":[%s]}'),
    ],
)
def test_very_many_objects_are_refused_before_the_body_is_read(
    kind: type[Body], content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    decode = java_json.decode

    def noted(data: bytes, *arguments: Any, **options: Any) -> Any:
        read.append(len(data))
        return decode(data, *arguments, **options)

    monkeypatch.setattr(java_json, "decode", noted)
    kind.decode(content % b",".join([b"{}"] * 10_000))
    assert len(read) == 1
    with pytest.raises(ProtocolError, match=rf"1400\d\d\d opening braces, .* {kind.__name__} is 32768"):
        kind.decode(content % b",".join([b"{}"] * 1_400_000))
    assert len(read) == 1
