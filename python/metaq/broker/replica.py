"""The role of a replica: it serves reads from the copy of its master's log, and relays everything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from metaq._core import BrokerPlane
from metaq._core import Request as CoreRequest
from metaq.broker.node import Node
from metaq.broker.requests.admin import Admin, AdminParts, parse_properties
from metaq.broker.requests.handlers import master_handlers
from metaq.broker.requests.health import HealthParts, HealthRequests
from metaq.broker.requests.operator_gate import OperatorGate
from metaq.broker.state.broker_state import BrokerState
from metaq.broker.state.consumer_group import Change, ConsumerGroup
from metaq.broker.state.run_time_options import concerns_node
from metaq.journal.journal import Entry
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands import (
    admin,
    clients,
    groups,
    health,
    messages,
    offsets,
    options,
    replication,
    topics,
)
from metaq.protocol.dispatch import Handlers, Request, Unfinished
from metaq.protocol.errors import Refused

_log = logging.getLogger(__name__)

_NO_MASTER = (
    "[ROLE] this broker is a replica and its group has no master now: try again later or ask another broker"
)

_MIXED = (
    "some of these settings belong to this replica and others to its master: change them with two commands"
)

ANSWERED_HERE: Final[frozenset[type[Command]]] = frozenset(
    {
        admin.GetBrokerConfig,
        admin.GetBrokerHaStatus,
        admin.GetBrokerRuntimeInfo,
        clients.CheckClientConfig,
        clients.GetAllProducerInfo,
        clients.GetConsumerConnectionList,
        clients.GetConsumerListByGroup,
        clients.GetProducerConnectionList,
        clients.HeartBeat,
        clients.UnregisterClient,
        groups.GetAllSubscriptionGroupConfig,
        health.GetBrokerReport,
        health.ListClients,
        messages.LitePullMessage,
        messages.MeasureQueue,
        messages.PullMessage,
        messages.QueryConsumeQueue,
        messages.QueryMessage,
        messages.ViewMessageById,
        offsets.GetAllConsumerOffset,
        offsets.GetEarliestMessageStoreTime,
        options.GetOptions,
        replication.DrainBroker,
        replication.GetGroupStatus,
        topics.GetAllTopicConfig,
        topics.GetSystemTopicListFromBroker,
        topics.GetTopicConfig,
        topics.GetTopicStatsInfo,
    }
)
"""The requests that a replica answers from its own data. It relays all others to its master."""

WITHOUT_MASTER: Final[frozenset[type[Command]]] = frozenset(
    {clients.LockBatchQueues, clients.UnlockBatchQueues}
)
"""The requests that a replica answers itself while its fixed master is away, so that consumers read on. In a
group with a register another master comes soon, which must be the only one to give locks."""


class ReplicaHandlers(Handlers):
    """Answers reads, relays the rest."""

    def __init__(self, handlers: Handlers, *, stands_in: bool) -> None:
        """`stands_in` lets this replica give locks while its group has no master."""
        super().__init__()
        self._handlers = handlers
        self._here = frozenset(command.code for command in ANSWERED_HERE)
        self._without_master = frozenset(command.code for command in WITHOUT_MASTER if stands_in)

    def begin(self, request: Request) -> Unfinished | None:
        concerns_this = request.code in self._here or _concerns_node(request)
        if concerns_this:
            return self._handlers.begin(request)
        if concerns_this is None:
            if not request.oneway:
                request.respond(ResponseCode.INVALID_PARAMETER, remark=_MIXED)
            return None
        if isinstance(request, CoreRequest) and request.relay():
            return None
        if request.code in self._without_master:
            return self._handlers.begin(request)
        if not request.oneway:
            request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, remark=_NO_MASTER)
        return None


def _concerns_node(request: Request) -> bool | None:
    """Returns whether the request changes options of this node alone, such as its log level or the levels of
    its disk; None if it changes some of its master as well."""
    try:
        if request.code == admin.UpdateBrokerConfig.code:
            return concerns_node(parse_properties(request.body))
        if request.code == options.ChangeOptions.code:
            changes = options.OptionChanges.decode(request.body)
            return concerns_node([*changes.values, *changes.forget])
    except Refused:
        pass
    return False


class Replica:
    """One lifetime as replica on a node that has no other role."""

    def __init__(self, node: Node) -> None:
        assert node.group is not None, "a lone broker has no replica's role"
        self._node = node
        self._undo = AsyncExitStack()
        self._is_announced = False
        self._leaves = True
        self.broker_id = node.group.broker_id
        settings = replace(node.options.broker, stands_in=node.group.has_fixed_roles)
        self.plane = BrokerPlane(node.listener, node.store, settings, is_replica=True)
        self.state = BrokerState(node, self.plane, self._announce_topics)
        self.admin = Admin(
            AdminParts(
                options=node.options,
                broker_id=self.broker_id,
                clock=node.clock,
                listener=node.listener,
                plane=self.plane,
                store=node.store,
                topics=self.state.topics,
                groups=self.state.groups,
                statistics=self.state.statistics,
                run_time=node.run_time,
                address=node.address,
                started_ms=node.started_ms,
                pools=node.pools,
                filter_figures=node.functions.figures,
            )
        )
        handlers = master_handlers(node, self.plane, self.state, self.admin)
        self.handlers = ReplicaHandlers(handlers, stands_in=node.group.has_fixed_roles)
        self.registration = node.new_registration(
            self.broker_id, self.state.topics, lambda: self.admin.permission
        )
        handlers.add(
            HealthRequests(
                HealthParts(
                    node,
                    self.plane,
                    self.state,
                    lambda: self.registration.registered,
                    lambda: self.admin.permission,
                    is_master=False,
                )
            )
        )

    async def start(self) -> None:
        """Loads the journal and serves reads from then on. Raises MetadataDamaged or OSError.

        If it fails, `stop` undoes the steps that were done.
        """
        undo, node = self._undo, self._node
        undo.callback(self.state.policy.stop)
        self.state.load()
        assert node.group is not None
        self.state.offsets.show_kept(node.group.kept_offsets.all())
        self.plane.set_permission(self.admin.permission)
        self.state.policy.send_all()
        undo.callback(node.journal.observe(self._follow))
        undo.push_async_callback(asyncio.to_thread, self.plane.stop)
        self.plane.start()
        undo.push_async_callback(node.pump.hand_over, node.without_role)
        await node.pump.hand_over(OperatorGate(self.handlers, node.options.operator_requests))
        undo.push_async_callback(node.functions.stop)
        node.functions.start(self.plane)

    async def announce(self) -> None:
        """Registers with the name servers, so that consumers may read here. Does nothing the second time."""
        if not self._is_announced:
            self._is_announced = True
            self._undo.push_async_callback(self._end_registration)
            await self.registration.start()

    async def stop(self, *, leaves: bool = True) -> None:
        """Undoes the start step by step. Safe to call twice.

        Unless the broker `leaves`, its next role goes on with its registration.
        """
        self._leaves = leaves
        undo, self._undo = self._undo, AsyncExitStack()
        await undo.aclose()
        if (group := self._node.group) is not None:
            # Commits since the group last looked at them.
            group.kept_offsets.keep(await asyncio.to_thread(self.state.offsets.take_kept))
            await group.kept_offsets.save()

    def consumers_changed(self, group: ConsumerGroup, change: Change) -> None:
        """Reacts to changed members or subscriptions of a group."""
        self.state.policy.members_changed(group.name)

    async def _end_registration(self) -> None:
        await self._node.end_registration(self.registration, leaves=self._leaves)

    def _follow(self, entries: Sequence[Entry]) -> None:
        self.state.follow(entries)

    async def _announce_topics(self, topics: Collection[str]) -> None:
        """Nothing to do: name servers take topics from masters alone."""
