"""Features of Apache's broker that this one does not have. The answers say so truthfully."""

from __future__ import annotations

import asyncio

from metaq._core import Store
from metaq.protocol.admin import (
    GetBrokerHaStatus,
    GetColdDataFlowControlInfo,
    ListAccessRules,
    ListUsers,
    ResetMasterFlushOffset,
)
from metaq.protocol.bodies import ColdDataInfo, HaStatus, MessageRequestMode, MessageRequestModes
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.groups import GetAllMessageRequestMode, SetMessageRequestMode


class Unsupported:
    """No replicas, no slowed reads, no users, and one mode of consumption."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @handles(GetBrokerHaStatus)
    async def get_broker_ha_status(self, command: GetBrokerHaStatus, request: Request) -> Response:
        figures = await asyncio.to_thread(self._store.figures)
        status = HaStatus(master_commit_log_max_offset=figures.commit_log_max_offset)
        return Response(body=status.encode())

    @handles(ResetMasterFlushOffset)
    def reset_master_flush_offset(self, command: ResetMasterFlushOffset, request: Request) -> None:
        """Does nothing: there is no replica whose offset could be reset."""

    @handles(GetColdDataFlowControlInfo)
    def get_cold_data_info(self, command: GetColdDataFlowControlInfo, request: Request) -> Response:
        return Response(body=ColdDataInfo().encode())

    @handles(ListUsers, ListAccessRules)
    def list_nobody(self, command: Command, request: Request) -> Response:
        return Response(body=b"[]")

    @handles(SetMessageRequestMode)
    def set_message_request_mode(self, command: SetMessageRequestMode, request: Request) -> None:
        asked = MessageRequestMode.decode(request.body)
        if asked.mode != "PULL":
            raise Refused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"group {asked.consumer_group[:128]} cannot be set to {asked.mode[:32]!a}: "
                "this version of MetaQ offers PULL alone",
            )

    @handles(GetAllMessageRequestMode)
    def get_all_message_request_mode(self, command: GetAllMessageRequestMode, request: Request) -> Response:
        return Response(body=MessageRequestModes().encode())
