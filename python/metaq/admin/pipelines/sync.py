"""`Admin.pipelines` for plain code."""

from __future__ import annotations

from metaq.admin.pipelines import report_topic
from metaq.admin.pipelines.reports import PipelineReport, PipelineReports
from metaq.client.portal import Portal


class Pipelines:
    """Lists the pipelines and Spark queries that report to a cluster."""

    def __init__(self, portal: Portal, work: report_topic.Pipelines) -> None:
        self._portal = portal
        self._work = work

    def list(self) -> PipelineReports:
        """Returns the newest report of each run.

        The first call reads the last 1,024 reports of each broker, and the last reports of 64 runs that are
        over. Later calls of the same client read only new reports. Raises NoRoute if no broker is registered;
        brokers without reports are not an error.
        """
        return self._portal.run(self._work.list)

    def send(self, report: PipelineReport) -> None:
        """Sends a report, so that `list` shows it. The first one creates the topic of reports."""
        self._portal.run(self._work.send, report)
