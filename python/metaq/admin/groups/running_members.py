"""Asks the clients of a group for reports on themselves. A broker passes the question on to each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metaq.admin.calls import Calls, in_parallel
from metaq.admin.results import Member, RunningMember, Subscription, SubscriptionConflict
from metaq.client.session.routes import Queue
from metaq.digits import LONG_MAX, number_in
from metaq.errors import MetaqError
from metaq.protocol import names
from metaq.protocol.bodies import ConsumerRunningInfo
from metaq.protocol.commands.clients import GetConsumerRunningInfo


async def ask_members(
    calls: Calls, group: str, members: Iterable[Member], *, stacks: bool
) -> tuple[RunningMember, ...]:
    """Asks each member through a broker that it is connected to. One that does not answer has an `error`."""
    by_id = {member.client_id: member for member in members}

    async def one(client_id: str) -> RunningMember:
        command = GetConsumerRunningInfo(consumer_group=group, client_id=client_id, jstack_enable=stacks)
        try:
            reply = await calls.ask(by_id[client_id].brokers[0], command)
            return _described(client_id, ConsumerRunningInfo.decode(reply.body))
        except MetaqError as error:
            return RunningMember(client_id, error=str(error))

    found = await in_parallel(by_id, one)
    return tuple(found[client_id] for client_id in sorted(found))


def _described(client_id: str, info: ConsumerRunningInfo) -> RunningMember:
    queues = {
        Queue(queue.topic, queue.broker_name, queue.queue_id)
        for queue in (*info.mq_table, *info.mq_pop_table)
    }
    started = info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    ordered = info.properties.get("PROP_CONSUME_ORDERLY", "").lower()
    return RunningMember(
        client_id,
        tuple(sorted(queues)),
        tuple(
            Subscription(entry.topic, entry.sub_string, entry.expression_type)
            for entry in sorted(info.subscription_set, key=lambda entry: entry.topic)
        ),
        number_in(started, LONG_MAX),
        ordered == "true" if ordered in ("true", "false") else None,
        info.jstack,
    )


def conflicts_of(members: Sequence[RunningMember]) -> tuple[SubscriptionConflict, ...]:
    """Returns the topics that members subscribe to in different ways. Members that did not answer do not
    count."""
    filters = {
        member.client_id: {
            entry.topic: f"{entry.expression_type} {entry.expression}"
            for entry in member.subscriptions
            if not entry.topic.startswith(names.RETRY_PREFIX)
        }
        for member in members
        if member.error is None
    }
    topics = sorted({topic for of_member in filters.values() for topic in of_member})
    found = []
    for topic in topics:
        expressions = {client_id: of_member.get(topic) for client_id, of_member in filters.items()}
        if len(set(expressions.values())) > 1:
            found.append(SubscriptionConflict(topic, expressions))
    return tuple(found)
