"""Messages that a consumer failed to handle: what is refused before it costs anything."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from metaq._core import BrokerPlane, Store
from metaq.broker.requests.send_back import Retries
from metaq.broker.state.copy_budget import CopyBudget
from metaq.protocol.bodies import SubscriptionGroupConfig
from metaq.protocol.commands.messages import ConsumerSendMsgBack
from metaq.protocol.errors import Refused
from metaq.protocol.handling.local_peers import source_of
from metaq.work_pools import WorkPools


def test_a_machine_has_one_budget_with_all_addresses_of_its_subnet(tables: Any, request_with: Any) -> None:
    tables.groups.put(SubscriptionGroupConfig(group_name="g"))
    budget = CopyBudget(1_000)
    budget.charge(source_of("[2001:db8::1]:50000"), 1_000_000)
    retries = Retries(
        tables.topics, tables.groups, cast(Store, None), cast(BrokerPlane, None), WorkPools(), budget
    )
    command = ConsumerSendMsgBack(physical_offset=0, group="g", delay_level=0)
    with pytest.raises(Refused, match="send_back_bytes_per_second") as raised:
        asyncio.run(retries.consumer_send_msg_back(command, request_with(remote="[2001:db8::2]:50000")))
    assert raised.value.code == 2
