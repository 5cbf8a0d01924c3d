"""Replies to requests between clients: what is refused before it costs anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from metaq.broker.requests import replies
from metaq.broker.requests.replies import PROPERTIES_BYTES_MAX, Replies
from metaq.broker.state.clients import Clients
from metaq.broker.state.runtime_switches import Switches
from metaq.protocol.commands.messages import SendReplyMessage
from metaq.protocol.errors import Refused
from metaq.protocol.handling.pump import Pump
from metaq.protocol.properties import decode_properties
from tests.unit.broker.conftest import options_for


def test_long_properties_are_refused_unread(
    tables: Any, tmp_path: Path, request_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def noted(text: str) -> dict[str, str]:
        read.append(len(text))
        return decode_properties(text)

    monkeypatch.setattr(replies, "decode_properties", noted)
    clients = Clients(tables.clock, 120.0, lambda group, change: None)
    handler = Replies(
        cast(Pump, None), clients, tables.topics, tables.clock, Switches(), "", options_for(tmp_path)
    )

    def reply(properties: str) -> Refused:
        command = SendReplyMessage(
            producer_group="p",
            topic="t",
            default_topic="",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties=properties,
        )
        with pytest.raises(Refused) as raised:
            asyncio.run(handler.send_reply_message(command, request_with()))
        return raised.value

    refused = reply("é\x01" * 500_000)
    assert (refused.code, read) == (13, [])
    assert f"the limit is {PROPERTIES_BYTES_MAX}" in (refused.remark or "")
    assert "has no property" in (reply("x" * PROPERTIES_BYTES_MAX).remark or "")
    assert read == [PROPERTIES_BYTES_MAX]
