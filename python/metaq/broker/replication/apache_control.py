"""A broker behind an Apache master: it copies, serves no messages, and takes over when an operator asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from metaq._core import truncate_store
from metaq.broker.node import Node
from metaq.broker.options import BrokerOptions
from metaq.broker.replication.apache_move import ApacheMove, MovePhase, MoveState
from metaq.broker.replication.apache_start import ApacheCopy, write_mark
from metaq.broker.requests.replication import ReplicationRequests
from metaq.errors import CommandError
from metaq.ha.operators.group_control import SwitchRefused
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.replication import GroupStatus, NodeStateWord, NodeStatus
from metaq.protocol.dispatch import Handlers, Request, Unfinished
from metaq.protocol.names import MASTER_ID
from metaq.settings import StoreSettings

_log = logging.getLogger(__name__)

REPLICA_ID: Final = 1
"""Stands for this broker in the state of the group, while the Apache master has the id 0."""
LOOK_INTERVAL_S: Final = 0.25
NOT_YET: Final = (
    "[ROLE] this broker copies the Apache master {address}: ask that one until this one takes over"
)


class CopyingBroker(Protocol):
    """The broker that copies."""

    options: BrokerOptions

    @property
    def node(self) -> Node: ...
    @property
    def address(self) -> str: ...
    async def become_master(self) -> None: ...
    async def reopen_store(self, change: Callable[[StoreSettings], None]) -> None: ...


class ApacheControl:
    """Copies an Apache master from `start` until a switch to this broker, or `stop`.

    It is the `GroupControl` of this broker meanwhile: a group of the Apache master and this broker.
    """

    node_id: Final = REPLICA_ID

    def __init__(self, broker: CopyingBroker, copy: ApacheCopy) -> None:
        self._broker = broker
        self._copy = copy
        self._move = self._new_move()
        self._changing = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._may_serve = False
        """The move has ended, and this broker is master or about to become it."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has an exception if this broker can neither copy nor take over any more."""

    @property
    def master_address(self) -> str | None:
        """The address of the Apache master; None after the take-over."""
        return None if self._may_serve else self._copy.mark.master

    async def start(self) -> None:
        """Copies from now on, and lets operators in. `stop` undoes it."""
        self._move.begin(self._copy.facts)
        await self._answer()
        self._broker.node.let_clients_in()
        self._looking = asyncio.create_task(self._look_regularly(), name="Apache copy")
        _log.info("copies the Apache master %s", self._copy.mark.master)

    async def stop(self) -> None:
        """Stops copying. Safe to call twice."""
        looking, self._looking = self._looking, None
        async with self._changing:
            if looking is not None:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            await self._move.stop()

    # ---- what operators ask

    def status(self) -> GroupStatus:
        """Returns the Apache master as node 0, and this broker as its replica."""
        name, master = self._broker.options.broker.name, self._copy.mark.master
        return move_status(name, self._move.state, master, self._broker.address)

    async def switch(self, target: int, *, force: bool = False) -> None:
        """Takes over and becomes master. Raises SwitchRefused, and then goes on copying."""
        if target != MASTER_ID:
            raise SwitchRefused(
                f"this broker copies an Apache master and can only take its place, which is node {MASTER_ID}"
            )
        async with self._changing:
            if not self._may_serve:
                await self._take_over(force=force)
            await self._serve()

    async def drain(self, wait_s: float | None = None) -> None:
        raise SwitchRefused(
            "this broker copies an Apache master and serves nobody, so there is nothing to hand over",
            hint="stop it with SIGTERM instead",
        )

    async def _take_over(self, *, force: bool) -> None:
        is_complete = self._move.state.is_complete
        try:
            await self._move.take_over(force=force)
        except CommandError as error:
            raise SwitchRefused(str(error), hint=error.hint) from None
        self._may_serve = True
        if not is_complete:
            _log.warning("took over by force: messages that only the Apache master has are lost")

    async def _serve(self) -> None:
        """Becomes master. After an error an operator can try again."""
        mark = msgspec.structs.replace(self._copy.mark, taken_over=True)
        directory = Path(self._broker.options.store.directory)
        try:
            await asyncio.to_thread(write_mark, directory, mark)
            await self._broker.become_master()
        except BaseException:
            await self._answer()
            raise
        if self._looking is not None:
            self._looking.cancel()

    # ---- copying

    def _new_move(self) -> ApacheMove:
        return ApacheMove(self._copy.mark.master, self._broker.node.store, self._broker.node.journal)

    async def _answer(self) -> None:
        node = self._broker.node
        requests = ReplicationRequests(self, node.store, node.clock, node.pools)
        refusal = NOT_YET.format(address=self._copy.mark.master)
        await node.pump.hand_over(CopyHandlers(requests, refusal))

    async def _look_regularly(self) -> None:
        try:
            while True:
                await asyncio.sleep(LOOK_INTERVAL_S)
                async with self._changing:
                    await self._look()
        except Exception as error:
            _log.exception("cannot go on copying the Apache master %s", self._copy.mark.master)
            if not self.ended.done():
                self.ended.set_exception(error)
                # Whoever does not wait for it gets no warning.
                self.ended.exception()

    async def _look(self) -> None:
        if (failure := self._move.failure) is not None:
            raise failure
        start_offset = self._move.state.start_over_at
        if self._may_serve or self._move.state.phase is not MovePhase.START_OVER or start_offset is None:
            return
        _log.warning("the Apache master has deleted what comes next; starts over at %d", start_offset)
        await self._move.stop()
        await self._broker.reopen_store(lambda settings: truncate_store(settings, start_over_at=start_offset))
        self._move = self._new_move()
        self._move.begin(self._copy.facts)
        await self._answer()


class CopyHandlers(Handlers):
    """Answers operators, and refuses everything else."""

    def __init__(self, requests: ReplicationRequests, refusal: str) -> None:
        super().__init__(requests)
        self._refusal = refusal

    def begin(self, request: Request) -> Unfinished | None:
        if request.code in self._by_code:
            return super().begin(request)
        if not request.oneway:
            request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._refusal)
        return None


def move_status(name: str, state: MoveState, master_address: str, address: str) -> GroupStatus:
    """Returns a move as the state of a group with the Apache master and this broker."""
    master = NodeStatus(
        MASTER_ID, master_address, "master", "in sync" if state.is_master_reachable else "gone"
    )
    own = NodeStatus(
        REPLICA_ID,
        address,
        "replica",
        _word(state),
        lag_bytes=state.bytes_behind,
        lag_ms=0 if state.caught_up else None,
    )
    return GroupStatus(name, 0, MASTER_ID, 1, (MASTER_ID,), (master, own))


def _word(state: MoveState) -> NodeStateWord:
    if state.caught_up:
        return "in sync"
    is_copying = state.phase in (MovePhase.COPYING, MovePhase.START_OVER, MovePhase.CAUGHT_UP)
    return "catching up" if is_copying and state.is_master_reachable else "waiting"
