"""Compiles topics and groups into the policy that the data plane works by."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import asdict
from itertools import islice
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

import msgspec

from metaq._core import BrokerPlane, StandingSubscription, tag_codes
from metaq.broker.functions.call import Call
from metaq.broker.sql92 import BadExpression
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import ConsumerGroup, Member
from metaq.broker.state.filters import Filters, is_tags
from metaq.broker.state.groups import SYSTEM_GROUPS, Groups
from metaq.broker.state.limits import NO_LIMIT, Rates, consume_rates, send_rates
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.bodies import TAG, SubscriptionData, SubscriptionGroupConfig, TopicConfig
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.settings import GroupPolicy, SubscriptionPolicy, TopicPolicy

GATHER_S = 0.02
"""How long changes of the members of groups gather. However often a group changes, it is compiled once."""
TOPICS_AT_ONCE = 2_000
"""Topics of such groups that are compiled in one go; the groups after that wait for the next one."""
GROUP_COSTS = 10
"""A group counts as this many topics more than it has."""

_Policy = TypeVar("_Policy", TopicPolicy, GroupPolicy)
SubscriptionKey: TypeAlias = tuple[str, str, str, bool]
"""Everything that decides which messages a subscription selects."""


class PolicyFeed:
    """Sends the data plane the entries that have changed, and no others."""

    def __init__(
        self,
        plane: BrokerPlane,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        filters: Filters,
        send_default: Rates = NO_LIMIT,
        consume_default: Rates = NO_LIMIT,
    ) -> None:
        self._plane = plane
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._filters = filters
        self._send_default = send_default
        self._consume_default = consume_default
        self._topics_sent: dict[str, TopicPolicy] = {}
        self._groups_sent: dict[str, GroupPolicy] = {}
        self._standing: WeakValueDictionary[SubscriptionKey, StandingSubscription] = WeakValueDictionary()
        """A filter is compiled when it is new, and members that want the same one share it."""
        self._members: dict[str, dict[int, list[tuple[int, StandingSubscription]]]] = {}
        """By group and connection: what the data plane has, with the version of each subscription."""
        self._changed: dict[str, None] = {}
        """Groups whose members have changed, the oldest change first."""
        self._timer: asyncio.TimerHandle | None = None

    def send_all(self) -> None:
        self.send_topics([topic.topic_name for topic in self._topics])
        self.send_groups([group.group_name for group in self._groups])

    def send_topics(self, touched: Iterable[str]) -> None:
        """Brings these topics up to date in the data plane; deleted ones are removed."""
        changed: list[TopicPolicy] = []
        for name in touched:
            config = self._topics.get(name)
            if config is None:
                if self._topics_sent.pop(name, None) is not None:
                    self._plane.remove_topic(name)
                continue
            policy = compile_topic(config, self._send_default)
            if self._topics_sent.get(name) != policy:
                self._topics_sent[name] = policy
                changed.append(policy)
        if changed:
            self._plane.put_topics(changed)

    def members_changed(self, group: str) -> None:
        """Brings the topics of a group up to date in the data plane, a moment later. They matter only to
        connections that are not members yet. A group that the data plane does not know goes down at once."""
        if group not in self._groups_sent:
            self.send_groups([group])
            return
        self._changed[group] = None
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._send_changed)

    def _send_changed(self) -> None:
        self._timer = None
        touched: list[str] = []
        cost = 0
        for name in list(islice(self._changed, TOPICS_AT_ONCE // GROUP_COSTS)):
            del self._changed[name]
            touched.append(name)
            live = self._clients.consumer_group(name)
            cost += GROUP_COSTS + (len(live.subscriptions) if live is not None else 0)
            if cost >= TOPICS_AT_ONCE:
                break
        if self._changed:
            self._set_timer()
        self.send_groups(touched)

    def stop(self) -> None:
        """Sends nothing any more of what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._changed.clear()

    def send_groups(self, touched: Iterable[str]) -> None:
        """Brings these groups up to date in the data plane; deleted ones are removed. What their members have
        changed follows when it has gathered."""
        changed: list[GroupPolicy] = []
        added: list[str] = []
        for name in touched:
            config = self._groups.get(name)
            if config is None:
                self._members.pop(name, None)
                if self._groups_sent.pop(name, None) is not None:
                    self._plane.remove_group(name)
                continue
            policy = compile_group(
                config,
                self._clients.consumer_group(name),
                self._groups.forbidden_topics(name),
                self._consume_default,
                known=self._groups_sent.get(name),
                keeps_topics=name in self._changed,
            )
            if self._groups_sent.get(name) != policy:
                if name not in self._groups_sent:
                    added.append(name)
                self._groups_sent[name] = policy
                changed.append(policy)
        if changed:
            self._plane.put_groups(changed)
        for name in added:
            live = self._clients.consumer_group(name)
            for connection in list(live.members) if live is not None else ():
                self.send_member(name, connection)

    def send_member(self, group: str, connection: int) -> None:
        """Brings a member's own subscriptions up to date in the data plane; a former member is removed."""
        live = self._clients.consumer_group(group)
        member = live.members.get(connection) if live is not None else None
        if member is None:
            members = self._members.get(group, {})
            if members.pop(connection, None) is not None:
                self._plane.remove_member(group, connection)
            if not members:
                self._members.pop(group, None)
        elif group in self._groups_sent:
            subscriptions = self.convert_member(member)
            self._members.setdefault(group, {})[connection] = subscriptions
            self._plane.put_member(group, connection, member.broadcasting, subscriptions)

    def convert_member(self, member: Member) -> list[tuple[int, StandingSubscription]]:
        """The subscriptions of a member as the data plane keeps them, with their versions."""
        return [
            (member.version_of(topic), self._compiled(entry)) for topic, entry in member.subscriptions.items()
        ]

    def _compiled(self, subscription: SubscriptionData) -> StandingSubscription:
        key = _key(subscription)
        known = self._standing.get(key)
        if known is None:
            known = StandingSubscription(compile_subscription(subscription, self._filters))
            self._standing[key] = known
        return known


def _key(subscription: SubscriptionData) -> SubscriptionKey:
    return (
        subscription.topic,
        subscription.expression_type,
        subscription.sub_string,
        subscription.class_filter_mode,
    )


def checked(policy: _Policy) -> _Policy:
    """The policy, if the data plane can hold it. Raises Refused, which names the field and its range."""
    try:
        msgspec.convert(asdict(policy), type(policy))
    except msgspec.ValidationError as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"{policy.name[:128]!a} cannot be served: {error}"
        ) from None
    return policy


def compile_topic(config: TopicConfig, default: Rates = NO_LIMIT) -> TopicPolicy:
    rates = send_rates(config.topic_name, config.attributes, default)
    return TopicPolicy(
        name=config.topic_name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=config.perm,
        client_writable=names.is_client_writable(config.topic_name),
        client_readable=names.is_client_readable(config.topic_name),
        is_system=names.is_system_topic(config.topic_name),
        send_messages_per_second=rates.messages,
        send_bytes_per_second=rates.bytes,
    )


def compile_group(
    config: SubscriptionGroupConfig,
    live: ConsumerGroup | None,
    forbidden_topics: Iterable[str] = (),
    default: Rates = NO_LIMIT,
    *,
    known: GroupPolicy | None = None,
    keeps_topics: bool = False,
) -> GroupPolicy:
    """`known` is the policy that the group had. Members come and go, and seldom change its topics. With
    `keeps_topics`, the new policy has the topics of the known one."""
    # A limit for consumers must not slow down tools.
    default = NO_LIMIT if config.group_name in SYSTEM_GROUPS else default
    rates = consume_rates(config.attributes, default)
    subscriptions = live.subscriptions if live is not None else {}
    return GroupPolicy(
        name=config.group_name,
        client_usable=names.is_client_usable(config.group_name),
        is_system=names.is_system_group(config.group_name),
        consume_enabled=config.consume_enable,
        broadcast_enabled=config.consume_broadcast_enable,
        broadcasting=live is not None and live.broadcasting,
        broker_id=config.broker_id,
        slow_broker_id=config.which_broker_when_consume_slowly,
        retry_times_max=config.retry_max_times,
        forbidden_topics=tuple(forbidden_topics),
        subscriptions=known.subscriptions
        if known is not None and (keeps_topics or _are_for(known.subscriptions, subscriptions))
        else tuple(_for_newcomers(topic) for topic in sorted(subscriptions)),
        consume_messages_per_second=rates.messages,
        consume_bytes_per_second=rates.bytes,
    )


def _are_for(subscriptions: Collection[SubscriptionPolicy], topics: Collection[str]) -> bool:
    return len(subscriptions) == len(topics) and all(known.topic in topics for known in subscriptions)


def _for_newcomers(topic: str) -> SubscriptionPolicy:
    """The subscription for a connection whose heartbeat is still to come, as after it has reconnected. Other
    members of its group do not decide what it wants, so it counts as older than every pull: a client that
    wants tags gets all messages and selects them itself, and one with an expression has to try again."""
    return SubscriptionPolicy(topic=topic, version=-1)


def compile_subscription(subscription: SubscriptionData, filters: Filters) -> SubscriptionPolicy:
    """Compiles one subscription. A bad filter refuses its pulls only; the group's other subscriptions go
    on."""
    compiled, refusal = None, None
    codes = wanted_tag_codes(subscription)
    try:
        compiled = filters.compile(subscription.expression_type, subscription.sub_string)
        if len(codes) > filters.tags_max:
            # Without some of the tags, messages that the consumer wants would be skipped.
            raise BadExpression(
                f"the subscription names {len(codes)} tags, the limit is {filters.tags_max} "
                "(subscription_tags_max)"
            )
    except Refused as refused:
        refusal = (refused.code, refused.remark)
    return SubscriptionPolicy(
        topic=subscription.topic,
        version=subscription.sub_version,
        expression_type=subscription.expression_type or TAG,
        tag_codes=codes if refusal is None else (),
        program=None if isinstance(compiled, Call) else compiled,
        function=(compiled.function, compiled.text) if isinstance(compiled, Call) else None,
        refusal=refusal,
    )


def wanted_tag_codes(subscription: SubscriptionData) -> tuple[int, ...]:
    """The hash codes of the tags that a subscription names. Empty: every message, or another filter."""
    if subscription.class_filter_mode or not is_tags(subscription.expression_type):
        return ()
    # Clients also send a list of tags and their hash codes, but not all clients fill them in, and the
    # expression says the same.
    expression = subscription.sub_string.strip()
    return () if expression == "*" else tuple(tag_codes(expression))
