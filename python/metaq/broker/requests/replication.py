"""The broker's group, for operators: its state, a planned switch, a drain. Every role answers these."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

from metaq._core import Clock, Store
from metaq.ha.operators.group_control import GroupControl, GroupStatus, NodeStatus, SwitchRefused
from metaq.protocol.bodies import HaReplica, HaSource, HaStatus
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.admin import GetBrokerHaStatus
from metaq.protocol.commands.replication import DrainBroker, GetGroupStatus, SwitchMaster
from metaq.protocol.dispatch import RESPONDED, Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import peer_log
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

_ORDERS_MAX: Final = 8
_RATE_AGE_MS_MIN: Final = 1000
"""Rates are measured over at least this time."""


class ReplicationRequests:
    """Answers for one node, whatever its role is."""

    def __init__(
        self, control: GroupControl, store: Store, clock: Clock, pools: WorkPools | None = None
    ) -> None:
        self._control = control
        self._store = store
        self._rates = _Rates(clock)
        self._pools = pools or WorkPools()

    @handles(GetGroupStatus)
    def get_group_status(self, command: GetGroupStatus, request: Request) -> Response:
        return Response(body=self._control.status().encode())

    @handles(SwitchMaster)
    def switch_master(self, command: SwitchMaster, request: Request) -> Response:
        order = f"switch to node {command.target}{' by force' if command.force else ''}"
        return self._obey(request, order, self._control.switch(command.target, force=command.force))

    @handles(DrainBroker)
    def drain_broker(self, command: DrainBroker, request: Request) -> Response:
        return self._obey(request, "drain", self._control.drain(command.wait_s))

    def _obey(self, request: Request, order: str, work: Coroutine[None, None, None]) -> Response:
        """Carries an order out beside the handlers. They end with the role, and the order may end that."""
        if len(_orders) >= _ORDERS_MAX:
            work.close()
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{_ORDERS_MAX} orders are under way already")
        peer_log.write(_log, logging.WARNING, request.remote, "%s orders: %s", request.remote, order)
        task = asyncio.create_task(_carry_out(request, order, work))
        _orders.add(task)
        task.add_done_callback(_orders.discard)
        return RESPONDED

    @handles(GetBrokerHaStatus)
    async def get_broker_ha_status(self, command: GetBrokerHaStatus, request: Request) -> Response:
        """The same figures in RocketMQ's words, for `mqadmin haStatus`."""
        figures = await self._pools.look_ups.run(request, self._store.figures)
        group, log_end = self._control.status(), figures.commit_log_max_offset
        own = group.node(self._control.node_id)
        if own is not None and own.role == "master":
            status = self._of_master(group, log_end)
        else:
            status = self._of_replica(group.node(group.master), log_end)
        return Response(body=status.encode())

    def _of_master(self, group: GroupStatus, log_end: int) -> HaStatus:
        replicas = [
            self._replica(node, log_end, in_sync=node.state == "in sync")
            for node in group.nodes
            if node.role == "replica" and node.state != "gone" and node.lag_bytes is not None
        ]
        return HaStatus(
            ha_connection_info=replicas,
            in_sync_slave_nums=sum(replica.in_sync for replica in replicas),
            master=True,
            master_commit_log_max_offset=log_end,
        )

    def _replica(self, node: NodeStatus, log_end: int, *, in_sync: bool) -> HaReplica:
        acknowledged = max(log_end - (node.lag_bytes or 0), 0)
        return HaReplica(
            addr=node.address,
            diff=log_end - acknowledged,
            in_sync=in_sync,
            slave_ack_offset=acknowledged,
            transfer_from_where=acknowledged,
            transferred_byte_in_second=self._rates.of(node.id, acknowledged),
        )

    def _of_replica(self, master: NodeStatus | None, log_end: int) -> HaStatus:
        is_served = master is not None and master.state != "gone"
        source = HaSource(
            activated=is_served,
            master_addr="" if master is None else master.address,
            max_offset=log_end,
            transferred_byte_in_second=self._rates.of(self._control.node_id, log_end),
        )
        return HaStatus(ha_client_runtime_info=source, master=False)


_orders: set[asyncio.Task[None]] = set()
"""The orders under way. The event loop alone would not keep them alive."""


async def _carry_out(request: Request, order: str, work: Coroutine[None, None, None]) -> None:
    code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, "this broker stops: ask for the group's status"
    try:
        await work
        code, remark = ResponseCode.SUCCESS, ""
    except SwitchRefused as error:
        _log.warning("%s: refused: %s", order, error)
        hint = f"; {error.hint}" if error.hint else ""
        code, remark = ResponseCode.ILLEGAL_OPERATION, f"{error}{hint}"
    except Exception as error:
        _log.exception("%s failed", order)
        code, remark = ResponseCode.SYSTEM_ERROR, f"{order} failed: {type(error).__name__}"
    finally:
        if not request.oneway:
            request.respond(code, remark=remark or None)


class _Rates:
    """Bytes per second of each node's log, measured from one question to the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measured: dict[int, tuple[int, int, int]] = {}

    def of(self, node_id: int, log_end: int) -> int:
        """Returns the rate since the last question; 0 at the first one."""
        now_ms = self._clock.now_ms()
        before = self._measured.get(node_id)
        if before is None:
            self._measured[node_id] = (now_ms, log_end, 0)
            return 0
        at_ms, end, rate = before
        if now_ms - at_ms >= _RATE_AGE_MS_MIN:
            rate = max(log_end - end, 0) * 1000 // (now_ms - at_ms)
            self._measured[node_id] = (now_ms, log_end, rate)
        return rate
