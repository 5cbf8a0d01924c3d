"""Reading the settings of a group without creating it.

Asking a broker for one group's settings creates the group if the broker may create groups on first use. So
the broker is asked first whether it has the group. MetaQ's brokers answer that. Apache's do not: there, a
group that has clients or offsets exists, and only for one that has neither the whole table is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from metaq.admin.calls import Calls
from metaq.admin.limits import GROUP, limits_of
from metaq.admin.results import GroupSettings
from metaq.errors import NoSuchGroup
from metaq.protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable, TopicList
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import GetConsumerConnectionList
from metaq.protocol.commands.groups import (
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    GroupPage,
    QueryTopicsByConsumer,
    UpdateAndGetGroupForbidden,
)

PAGE_GROUPS: Final = 1_000
PAGES_MAX: Final = 1_000


async def find_config(calls: Calls, broker: str, group: str) -> SubscriptionGroupConfig | None:
    """Returns the settings of a group; None if the broker does not have it."""
    if await calls.is_metaq(broker):
        exists = await _is_known(calls, broker, group)
    elif await _is_in_use(calls, broker, group):
        exists = True
    else:
        async for page in config_pages(calls, broker):
            if group in page:
                return page[group]
        exists = False
    if not exists:
        return None
    missing = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    reply = await calls.ask(broker, GetSubscriptionGroupConfig(group=group), accept=(missing,))
    return None if reply.code == missing else SubscriptionGroupConfig.decode(reply.body)


async def require_group(calls: Calls, group: str) -> None:
    """Raises NoSuchGroup unless a broker has the group."""
    found, _ = await calls.from_each(await calls.masters(), lambda broker: find_config(calls, broker, group))
    if not any(config is not None for config in found.values()):
        raise NoSuchGroup(
            f"group {group} does not exist",
            hint="its consumers create it when they start; `metaq group list` lists all groups",
        )


async def config_pages(calls: Calls, broker: str) -> AsyncIterator[dict[str, SubscriptionGroupConfig]]:
    """Yields the settings of all groups of a broker. Brokers before 5.4 send all in one page."""
    seen: set[str] = set()
    version: str | None = None
    for _ in range(PAGES_MAX):
        command = GetAllSubscriptionGroupConfig(
            group_seq=len(seen), data_version=version, max_group_num=PAGE_GROUPS
        )
        reply = await calls.ask(broker, command)
        table = SubscriptionGroupTable.decode(reply.body)
        found = table.subscription_group_table
        yield {name: config for name, config in found.items() if name not in seen}
        is_new = bool(found.keys() - seen)
        seen.update(found)
        total = reply.header(GroupPage).total_group_num
        if total is None or len(seen) >= total or not is_new:
            return
        version = table.data_version.encode().decode()


def settings_of(broker: str, config: SubscriptionGroupConfig) -> GroupSettings:
    """Returns the settings as a user sees them."""
    return GroupSettings(
        broker,
        enabled=config.consume_enable,
        broadcast_allowed=config.consume_broadcast_enable,
        ordered=config.consume_message_orderly,
        retries_max=config.retry_max_times,
        retry_queues=config.retry_queue_nums,
        attributes=dict(config.attributes),
        limits=limits_of(broker, GROUP, config.attributes),
    )


async def _is_known(calls: Calls, broker: str, group: str) -> bool:
    missing = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    command = UpdateAndGetGroupForbidden(group=group, topic="")
    return (await calls.ask(broker, command, accept=(missing,))).code != missing


async def _is_in_use(calls: Calls, broker: str, group: str) -> bool:
    offline = ResponseCode.CONSUMER_NOT_ONLINE
    command = GetConsumerConnectionList(consumer_group=group)
    if (await calls.ask(broker, command, accept=(offline,))).code != offline:
        return True
    reply = await calls.ask(broker, QueryTopicsByConsumer(group=group))
    return bool(TopicList.decode(reply.body).topic_list)
