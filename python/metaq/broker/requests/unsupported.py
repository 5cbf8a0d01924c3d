"""Features of Apache's broker that this one does not have. The answers say so truthfully."""

from __future__ import annotations

from metaq.protocol.bodies import ColdDataInfo, MessageRequestMode, MessageRequestModes
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import (
    GetColdDataFlowControlInfo,
    ListAccessRules,
    ListUsers,
    ResetMasterFlushOffset,
)
from metaq.protocol.commands.groups import GetAllMessageRequestMode, SetMessageRequestMode
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused


class Unsupported:
    """No slowed reads, no users, and one mode of consumption."""

    @handles(ResetMasterFlushOffset)
    def reset_master_flush_offset(self, command: ResetMasterFlushOffset, request: Request) -> None:
        """Does nothing: replicas learn from the stream how far their master has flushed."""

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
