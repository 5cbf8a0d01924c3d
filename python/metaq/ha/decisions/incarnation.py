"""Whether a store is still the one that its group knows."""

from __future__ import annotations

from metaq.ha.group_record import Beat
from metaq.ha.node import Opened
from metaq.ha.node_files import NodeRecord


def why_new_incarnation(kept: NodeRecord | None, opened: Opened, beat: Beat | None) -> str:
    """Returns why the store may lack something that it once acknowledged, or an empty text if it cannot.

    `beat` is the node's own last beat. It counts if no truncation can have come after it.
    """
    if kept is None:
        return "the directory is new"
    if kept.start_over_at is not None:
        return "its log was being dropped"
    known_flushed = opened.flushed_mark
    if (
        beat is not None
        and beat.incarnation == kept.incarnation
        and beat.promised_epoch == kept.promised_epoch
    ):
        known_flushed = max(known_flushed, beat.flushed_end)
    if kept.truncate_to is not None:
        # The tail was not acknowledged to the group's present master, or it would not have been cut.
        known_flushed = min(known_flushed, kept.truncate_to)
    if opened.log_end < known_flushed:
        return f"its log ends at {opened.log_end}, but {known_flushed} had been flushed"
    if not opened.flush_is_sync and not opened.stopped_cleanly and opened.boot_id != kept.boot_id:
        return "the machine was restarted, and with flush=async the end of the log may be lost"
    return ""
