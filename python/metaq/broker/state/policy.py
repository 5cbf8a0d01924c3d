"""Compiles topics and groups into the policy that the data plane works by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TypeAlias, TypeVar

import msgspec

from metaq._core import BrokerPlane, tag_codes
from metaq.broker.functions.call import Call
from metaq.broker.sql92 import BadExpression
from metaq.broker.state.clients import Clients, ConsumerGroup
from metaq.broker.state.filters import Filters, is_tags
from metaq.broker.state.groups import SYSTEM_GROUPS, Groups
from metaq.broker.state.limits import NO_LIMIT, Rates, consume_rates, send_rates
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.bodies import TAG, SubscriptionData, SubscriptionGroupConfig, TopicConfig
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.settings import GroupPolicy, SubscriptionPolicy, TopicPolicy

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
        self._compiled: dict[str, dict[SubscriptionKey, SubscriptionPolicy]] = {}
        """By group. A filter is compiled when it is new, and not again whenever its group changes."""

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

    def send_groups(self, touched: Iterable[str]) -> None:
        changed: list[GroupPolicy] = []
        for name in touched:
            config = self._groups.get(name)
            if config is None:
                self._compiled.pop(name, None)
                if self._groups_sent.pop(name, None) is not None:
                    self._plane.remove_group(name)
                continue
            policy = compile_group(
                config,
                live := self._clients.consumer_group(name),
                self._filters,
                self._groups.forbidden_topics(name),
                self._consume_default,
                compiled=self._compiled.get(name, {}),
            )
            self._note_compiled(name, live, policy)
            if self._groups_sent.get(name) != policy:
                self._groups_sent[name] = policy
                changed.append(policy)
        if changed:
            self._plane.put_groups(changed)

    def _note_compiled(self, name: str, live: ConsumerGroup | None, policy: GroupPolicy) -> None:
        if live is None or not live.subscriptions:
            self._compiled.pop(name, None)
            return
        self._compiled[name] = {
            _key(live.subscriptions[entry.topic]): entry
            for entry in policy.subscriptions
            if entry.topic in live.subscriptions
        }


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
    filters: Filters,
    forbidden_topics: Iterable[str] = (),
    default: Rates = NO_LIMIT,
    *,
    compiled: Mapping[SubscriptionKey, SubscriptionPolicy] | None = None,
) -> GroupPolicy:
    """The policy of a group. Subscriptions that are in `compiled` are taken from there."""
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
        subscriptions=tuple(
            _compile_new(subscriptions[topic], filters, compiled or {}) for topic in sorted(subscriptions)
        ),
        consume_messages_per_second=rates.messages,
        consume_bytes_per_second=rates.bytes,
    )


def _compile_new(
    subscription: SubscriptionData, filters: Filters, compiled: Mapping[SubscriptionKey, SubscriptionPolicy]
) -> SubscriptionPolicy:
    known = compiled.get(_key(subscription))
    if known is None:
        return compile_subscription(subscription, filters)
    return replace(known, version=subscription.sub_version)


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
