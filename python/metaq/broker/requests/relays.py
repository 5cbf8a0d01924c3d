"""Questions that only a client can answer: the broker passes them on and returns the answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import msgspec

from metaq._core import Store
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.spaced_work import in_turns
from metaq.broker.state.broker_own import readable_record
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.broker.state.groups import Groups
from metaq.broker.state.topics import Topics
from metaq.protocol.bodies import GetConsumerStatusBody
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    GetConsumerStatusFromClient,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import ProtocolError, Refused, Unreachable
from metaq.protocol.handling.bounded_answer import BoundedAnswer
from metaq.protocol.handling.pump import Pump
from metaq.protocol.java_json import MessageQueue
from metaq.settings import MIB
from metaq.work_pools import WorkPools

STATUS_BYTES_MAX = 4 * MIB
"""The answers of all clients of a group to one question."""
STATUS_BYTES = 64
"""About the size of a queue in the status of a consumer."""
MESSAGE_ID_CHARACTERS = (32, 56)
"""Lengths with an IPv4 and with an IPv6 address in front; the last 16 digits are the physical offset."""


class Relays:
    """Asks consumers on behalf of tools."""

    def __init__(
        self,
        pump: Pump,
        clients: Clients,
        store: Store,
        topics: Topics,
        groups: Groups,
        options: BrokerOptions,
        pools: WorkPools,
    ) -> None:
        self._pump = pump
        self._clients = clients
        self._store = store
        self._topics = topics
        self._groups = groups
        self._options = options
        self._pools = pools

    @handles(GetConsumerRunningInfo)
    async def get_consumer_running_info(self, command: GetConsumerRunningInfo, request: Request) -> Response:
        member = self._member(command.consumer_group, command.client_id)
        return await self._relay(member, command)

    @handles(ConsumeMessageDirectly)
    async def consume_message_directly(self, command: ConsumeMessageDirectly, request: Request) -> Response:
        member = self._member(command.consumer_group, command.client_id)
        physical_offset = physical_offset_of(command.msg_id or "")
        record = await self._pools.look_ups.run(
            request, lambda: readable_record(self._store, physical_offset)
        )
        if record is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"no message begins at physical offset {physical_offset}"
            )
        topic = self._topics.get(command.topic or "")
        group = self._groups.get(command.consumer_group)
        order = msgspec.structs.replace(
            command,
            client_id=member.client_id,
            broker_name=self._options.broker.name,
            topic_sys_flag=topic.topic_sys_flag if topic is not None else None,
            group_sys_flag=group.group_sys_flag if group is not None else None,
        )
        return await self._relay(member, order, record)

    @handles(GetConsumerStatus)
    async def get_consumer_status(self, command: GetConsumerStatus, request: Request) -> Response:
        group = self._clients.consumer_group(command.group)
        asked = [
            member
            for member in (group.present() if group is not None else ())
            if command.client_addr in (None, "", member.client_id)
        ]
        if not asked:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"no such consumer of group {command.group[:128]} is connected"
            )
        question = GetConsumerStatusFromClient(topic=command.topic, group=command.group)
        told = _Told()
        with self._pump.waiting_for_client(questions=len(asked)):
            async with asyncio.TaskGroup() as questions:
                async for part in in_turns(asked):
                    for member in part:
                        questions.create_task(self._status(member, question, told))
        if told.size_bytes > STATUS_BYTES_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the consumers of group {command.group[:128]} answer with {told.size_bytes} bytes, the "
                f"limit is {STATUS_BYTES_MAX}: ask for one of them",
            )
        body = await self._pools.reading.run(request, lambda: _together(asked, told.bodies))
        return Response(body=body)

    async def _status(self, member: Member, question: Command, told: _Told) -> None:
        """Adds nothing if the client does not answer; others may."""
        with contextlib.suppress(Unreachable, Refused):
            timeout_s = self._options.client_status_timeout_s
            reply = await self._pump.invoke(member.connection, question, timeout=timeout_s)
            told.add(member.connection, reply.check().body)

    def _member(self, group_name: str, client_id: str | None) -> Member:
        """That client of the group, or the newest member if none is named."""
        group = self._clients.consumer_group(group_name)
        if group is not None:
            if client_id:
                member = group.find(client_id, self._clients.heard_since_ms())
            else:
                member = next(reversed(group.present()), None)
            if member is not None:
                return member
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"consumer {(client_id or '')[:128]} of group {group_name[:128]} is not connected",
        )

    async def _relay(self, member: Member, command: Command, body: bytes = b"") -> Response:
        try:
            timeout_s = self._options.client_answer_timeout_s
            reply = await self._pump.invoke(member.connection, command, body, timeout_s)
        except Unreachable as error:
            is_there = bool(self._clients.groups_of(member.connection)[0])
            code = ResponseCode.CONSUME_MESSAGE_TIMEOUT if is_there else ResponseCode.SYSTEM_ERROR
            raise Refused(code, f"client {member.client_id} was asked: {error}") from None
        return Response(reply.code, reply.remark, reply.fields, reply.body)


class _Told:
    """The answers of several clients. Nothing is kept of them once they are too long together."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        """By connection."""
        self.size_bytes = 0

    def add(self, connection: int, body: bytes) -> None:
        self.size_bytes += len(body)
        if self.size_bytes > STATUS_BYTES_MAX:
            self.bodies.clear()
        else:
            self.bodies[connection] = body


def _together(asked: list[Member], told: Mapping[int, bytes]) -> bytes:
    """The answers of all clients in one. Those that cannot be read are left out."""
    by_client: dict[str, dict[MessageQueue, int]] = {}
    answer = BoundedAnswer(GetConsumerStatus)
    for member in asked:
        with contextlib.suppress(ProtocolError):
            table = GetConsumerStatusBody.decode(told.get(member.connection, b"")).message_queue_table
            answer.add(len(member.client_id) + STATUS_BYTES * len(table), lines=len(table) + 1)
            by_client[member.client_id] = table
    return answer.encoded(GetConsumerStatusBody(consumer_table=by_client))


def physical_offset_of(message_id: str) -> int:
    """The physical offset in an offset message id. Raises ProtocolError for anything else."""
    if len(message_id) in MESSAGE_ID_CHARACTERS:
        try:
            physical_offset = int(message_id[-16:], 16)
            if message_id.isalnum() and physical_offset < 2**63:
                return physical_offset
        except ValueError:
            pass
    raise ProtocolError(f"{message_id[:64]!a} is not an offset message id, which has 32 or 56 hex digits")
