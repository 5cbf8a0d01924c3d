"""A broker's configuration, figures and housekeeping."""

from __future__ import annotations

from metaq.protocol.command import Command, Fields


class UpdateBrokerConfig(Command, code=25, permission="admin"):
    """Body: properties text."""


class ConfigVersion(Fields):
    version: str


class GetBrokerConfig(Command, code=26, permission="admin", reply=ConfigVersion):
    """Body of the answer: properties text."""


class TriggerDeleteFiles(Command, code=27, permission="admin"):
    """Applies retention now."""


class GetBrokerRuntimeInfo(Command, code=28):
    """Body of the answer: KVTable."""


class CleanExpiredConsumeQueue(Command, code=306, permission="admin"):
    """Deletes consume-queue files whose messages are gone."""


class DeleteExpiredCommitLog(Command, code=329, permission="admin"):
    """Deletes commit-log files past their age."""


class ViewBrokerStatsData(Command, code=315):
    """Body of the answer: BrokerStatsData."""

    stats_name: str
    stats_key: str
