"""A broker's configuration, figures and housekeeping."""

from __future__ import annotations

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int64, ShortText


class UpdateBrokerConfig(Command, code=25, permission="admin", resources={}):
    """Body: properties text."""


class ConfigVersion(Fields):
    version: ShortText


class GetBrokerConfig(Command, code=26, permission="admin", resources={}, reply=ConfigVersion):
    """Body of the answer: properties text."""


class TriggerDeleteFiles(Command, code=27, permission="admin", resources={}):
    """Applies retention now."""


class GetBrokerRuntimeInfo(Command, code=28, permission="describe", resources={}, answer_max=AnswerMax()):
    """Body of the answer: KVTable."""


class CleanExpiredConsumeQueue(Command, code=306, permission="admin", resources={}):
    """Deletes consume-queue files whose messages are gone."""


class DeleteExpiredCommitLog(Command, code=329, permission="admin", resources={}):
    """Deletes commit-log files past their age."""


class ViewBrokerStatsData(Command, code=315, permission="describe", resources={}, ends_with_connection=True):
    """Body of the answer: BrokerStatsData."""

    stats_name: ShortText
    stats_key: ShortText


class GetColdDataFlowControlInfo(
    Command, code=2003, permission="describe", resources={}, answer_max=AnswerMax(lines=0)
):
    """Body of the answer: the table of groups whose reads of old messages are slowed."""


class GetBrokerHaStatus(Command, code=907, permission="describe", resources={}, answer_max=AnswerMax()):
    """Body of the answer: HaStatus."""


class ResetMasterFlushOffset(Command, code=908, permission="cluster", resources={}):
    """Tells a replica how far its master has flushed; a master ignores it."""

    master_flush_offset: Int64


class ListUsers(Command, code=3005, permission="admin", resources={}, answer_max=AnswerMax(lines=0)):
    """Body of the answer: a list of users."""


class ListAccessRules(Command, code=3010, permission="admin", resources={}, answer_max=AnswerMax(lines=0)):
    """Body of the answer: a list of access rules."""
