"""A name server answers every request exactly once, and never with an unexpected error."""

from __future__ import annotations

import asyncio
import zlib
from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st

from metaq._core import Clock
from metaq.nameserver.key_values import KeyValues
from metaq.nameserver.options import Options
from metaq.nameserver.requests import BrokerRequests, RouteRequests
from metaq.nameserver.route_table import RouteTable
from metaq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from metaq.protocol.command import Command
from metaq.protocol.dispatch import Handlers
from metaq.protocol.handling.process_options import ProcessOptions
from tests.support.fake_request import FakeRequest


def all_handlers() -> Handlers:
    routes, key_values, options = (
        RouteTable(),
        KeyValues(),
        Options("127.0.0.1:9876", ProcessOptions(SimpleNamespace(limit_ms=0))),
    )
    clock = Clock.manual(1_000_000)
    return Handlers(
        BrokerRequests(routes, key_values, options, clock),
        RouteRequests(routes, key_values, options),
        key_values,
        options,
    )


words = st.sampled_from(
    [
        "b",
        "c",
        "T",
        "127.0.0.1:10911",
        "h:1",
        "0",
        "1",
        "-1",
        "true",
        "false",
        "",
        "null",
        "ORDER_TOPIC_CONFIG",
    ]
) | st.text(max_size=20)
topic_tables = st.dictionaries(
    st.sampled_from(["A", "B", "T"]) | st.text(max_size=5),
    st.builds(TopicConfig, perm=st.integers(0, 7), read_queue_nums=st.integers(-1, 9)),
    max_size=4,
)
registrations = st.builds(
    lambda table, counter: RegisterBrokerBody([], TopicConfigTable(DataVersion(counter), table)).encode(),
    topic_tables,
    st.integers(0, 3),
)
bodies = st.one_of(
    st.binary(max_size=60),
    registrations,
    registrations.map(zlib.compress),
    st.sampled_from([b"", b"{}", b"null", b"[]", b"{1:2}", b"a=b", b"orderMessageEnable=true"]),
    st.just(TopicRouteData().encode()),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[type[Command], dict[str, str], bytes, int]:
    command = draw(st.sampled_from(all_handlers().commands()))
    left_out = draw(st.none() | st.sampled_from(command.__struct_encode_fields__ or ("",)))
    fields = {name: draw(words) for name in command.__struct_encode_fields__ if name != left_out}
    return command, fields, draw(bodies), draw(st.sampled_from([30, 317, 513]))


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(st.lists(requests(), max_size=12))
def test_every_request_gets_one_answer_that_was_foreseen(
    sequence: list[tuple[type[Command], dict[str, str], bytes, int]],
) -> None:
    handlers = all_handlers()
    for command, fields, body, version in sequence:
        request = FakeRequest(command.code, fields, body, version)
        asyncio.run(handlers.answer(request))
        [(code, remark, _, _)] = request.answers
        assert not request.retried, "a name server has no hot requests"
        assert "failed" not in (remark or ""), (command, fields, body)
        assert code == 0 or remark
        assert len(remark or "") < 700
