"""The role of a master: its parts, started in order and stopped in the reverse order.

A role is a lifetime. The parts of one master are made once, serve from `start` to `stop`, and are thrown
away; the next master of the same node gets new ones, which load the data that these have written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Final

from metaq._core import BrokerPlane
from metaq.broker.background.housekeeping import Housekeeping
from metaq.broker.background.rebalance_notices import Notices
from metaq.broker.background.stuck_queues import StuckQueues
from metaq.broker.background.transaction_checks import TransactionChecks
from metaq.broker.background.vanished_owners import VanishedOwners
from metaq.broker.node import Node
from metaq.broker.replication.apache_slaves import ApacheSlaves
from metaq.broker.replication.offset_merge import OffsetMerge
from metaq.broker.requests.admin import Admin, AdminParts
from metaq.broker.requests.handlers import master_handlers
from metaq.broker.requests.health import HealthParts, HealthRequests
from metaq.broker.requests.open_transactions import OpenTransactions
from metaq.broker.requests.operator_gate import OperatorGate
from metaq.broker.state.broker_state import BrokerState
from metaq.broker.state.consumer_group import Change, ConsumerGroup
from metaq.broker.state.recall_key import load_recall_key
from metaq.protocol import names

_log = logging.getLogger(__name__)

CATCH_UP_TIMEOUT_MS = 60_000


class Master:
    """One lifetime as master on a node that has no other role."""

    broker_id: Final = names.MASTER_ID

    def __init__(self, node: Node) -> None:
        self._node = node
        self._undo = AsyncExitStack()
        self._is_deposed = False
        self._leaves = True
        self.plane = BrokerPlane(
            node.listener, node.store, node.options.broker, has_replicas=node.group is not None
        )
        self.state = BrokerState(node, self.plane, self._announce)
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
        self.transactions = TransactionChecks(
            lambda: node.options, node.clock, self.plane, node.clients, node.pump, node.pools
        )
        self.handlers = master_handlers(node, self.plane, self.state, self.admin)
        self.handlers.add(self.transactions)
        self.handlers.add(
            OpenTransactions(
                node.options, node.store, self.plane, self.transactions.next_check_ms, node.pools
            )
        )
        self.notices = Notices(node.pump, node.clients, self.state.groups)
        self.vanished_owners = VanishedOwners(self.plane, self.state.locks, node.clients, self.notices)
        listen = node.options.apache_ha_listen
        self.apache_slaves = None if listen is None else ApacheSlaves(listen, node.store)
        self.registration = node.new_registration(
            self.broker_id,
            self.state.topics,
            lambda: self.admin.permission,
            None if self.apache_slaves is None else self.apache_slaves.port,
        )
        self.stuck_queues = StuckQueues(self.plane, node.clients, self.state.groups, node.clock)
        self.handlers.add(
            HealthRequests(
                HealthParts(
                    node,
                    self.plane,
                    self.state,
                    lambda: self.registration.registered,
                    lambda: self.admin.permission,
                    is_master=True,
                    stuck_queues=self.stuck_queues,
                )
            )
        )
        self.housekeeping = Housekeeping(node, self.state, self.transactions, self.stuck_queues)

    async def start(self) -> None:
        """Loads everything and serves requests from then on. Raises MetadataDamaged or OSError.

        If it fails, `stop` undoes the steps that were done.
        """
        undo, node = self._undo, self._node
        undo.callback(self.state.policy.stop)
        if self.apache_slaves is not None:
            undo.push_async_callback(self.apache_slaves.stop)
            self.apache_slaves.start()
        self.state.load()
        if node.group is not None:
            await self._take_kept_offsets(node.group.kept_offsets)
        recall_key = await load_recall_key(node.journal)
        if recall_key is not None:
            self.plane.set_recall_key(recall_key)
        await self.transactions.load()
        undo.push_async_callback(self._end)
        self.plane.set_permission(self.admin.permission)
        await self.state.publish()
        undo.push_async_callback(self._stop_plane)
        self.plane.start()
        undo.push_async_callback(node.pump.hand_over, node.without_role)
        await node.pump.hand_over(OperatorGate(self.handlers, node.options.operator_requests))
        undo.push_async_callback(node.functions.stop)
        node.functions.start(self.plane)

    async def _take_kept_offsets(self, kept: OffsetMerge) -> None:
        """Takes over what was committed at this node while it was a replica without a master."""
        if taken := kept.take():
            self.state.offsets.advance(taken)
            # The journal must have them before the file of a fixed role forgets them.
            await self.state.offsets.persist()
            await kept.save()

    async def announce(self) -> None:
        """Registers with the name servers, so that clients come, and starts the regular work."""
        self._undo.push_async_callback(self._end_registration)
        await self.registration.start()
        if (drain := self._node.lone_drain) is not None:
            drain.stop_writes = self.admin.stop_writes
            self._undo.callback(setattr, drain, "stop_writes", None)
        self._undo.callback(self.notices.stop)
        self._undo.callback(self._forget_owners)
        self._node.clients.vanished = self.vanished_owners.vanished
        self._undo.push_async_callback(self.housekeeping.stop)
        self.housekeeping.start()

    async def stop(self, *, deposed: bool = False, leaves: bool = True) -> None:
        """Undoes the start step by step: first the routes, so that clients go elsewhere; at last everything
        is written. Safe to call twice.

        A `deposed` master waits for no confirmation and writes nothing: its successor decides from now on.
        Unless the broker `leaves`, its next role goes on with its registration.
        """
        self._is_deposed, self._leaves = deposed, leaves
        undo, self._undo = self._undo, AsyncExitStack()
        await undo.aclose()

    async def catch_up(self) -> None:
        """Does all work that is due after a clock jump at once, instead of a little later."""
        await self.housekeeping.look()
        await self.housekeeping.apply_retention()
        await self.transactions.check()
        await self.stuck_queues.look()
        if not await asyncio.to_thread(self.plane.catch_up, CATCH_UP_TIMEOUT_MS):
            _log.warning("not everything that is due by the moved clock has been delivered yet")

    def consumers_changed(self, group: ConsumerGroup, change: Change) -> None:
        """Reacts to changed members or subscriptions of a group."""
        self.state.policy.members_changed(group.name)
        if change is Change.SHARES:
            self.notices.consumers_changed(group)

    def _forget_owners(self) -> None:
        self._node.clients.vanished = lambda group, client_id: None
        self.vanished_owners.stop()

    async def _announce(self, topics: Collection[str]) -> None:
        await self.registration.announce(topics)

    async def _end_registration(self) -> None:
        await self._node.end_registration(self.registration, leaves=self._leaves)

    async def _stop_plane(self) -> None:
        await asyncio.to_thread(self.plane.stop, wait_confirmed=not self._is_deposed)

    async def _end(self) -> None:
        if not self._is_deposed:
            await self.persist()

    async def persist(self) -> None:
        """Writes offsets, progress and locks, while nothing changes them."""
        try:
            await self.transactions.keep_offsets()
        except Exception as error:
            _log.error("the place of the open transactions was not written at the stop: %s", error)
        await self.state.persist()
