"""Whether a store is still the one that its group knows."""

from __future__ import annotations

from metaq.ha.conducting.node_files import NodeRecord
from metaq.ha.group_record import Beat
from metaq.ha.node import Opened
from metaq.ha.view import StateVersion


def why_new_incarnation(kept: NodeRecord | None, opened: Opened) -> str:
    """Returns why the store may lack something that it once acknowledged, or an empty text if it cannot."""
    if kept is None:
        return "the directory is new"
    if kept.start_over_at is not None:
        return "its log was being dropped"
    known_flushed = opened.flushed_mark
    if kept.truncate_to is not None:
        # The tail was not acknowledged to the group's present master, or it would not have been cut.
        known_flushed = min(known_flushed, kept.truncate_to)
    if opened.log_end < known_flushed:
        return f"its log ends at {opened.log_end}, but {known_flushed} had been flushed"
    if not opened.flush_is_sync and not opened.stopped_cleanly and opened.boot_id != kept.boot_id:
        return "the machine was restarted, and with flush=async the end of the log may be lost"
    return _why_state_is_lost(kept, opened)


def _why_state_is_lost(kept: NodeRecord, opened: Opened) -> str:
    """Topics, groups and offsets were promised as well: whoever lacks some must not be elected."""
    if opened.state_mark is None:
        if kept.state_version is None:
            return ""
        return "the mark of its journal is lost, so topics, groups or offsets may be missing"
    known = max(opened.state_mark, kept.state_version or opened.state_mark)
    if opened.state_version < known:
        return "its journal lacks topics, groups or offsets that it had before"
    return ""


def is_lasting(state_version: StateVersion, promised_epoch: int) -> bool:
    """Whether no later master takes a node's newest entry of the control state back while it promises this
    epoch: an entry of an earlier master may be unknown to the present one."""
    return state_version[0] >= promised_epoch


def is_older_copy(kept: NodeRecord, beat: Beat) -> bool:
    """Whether the whole store went back in time, as its own last beat shows.

    A beat shows promises only after they are on the disk, and nothing ever lowers them there.
    """
    return beat.incarnation == kept.incarnation and (
        beat.promised_epoch > kept.promised_epoch or beat.promised_version > kept.promised_record.version
    )


def is_behind_its_beat(kept: NodeRecord, opened: Opened, beat: Beat) -> bool:
    """Whether the store lacks something that its own last beat claimed to have.

    The beat counts only as far as nothing can have been taken back after it.
    """
    if beat.incarnation != kept.incarnation or beat.promised_epoch != kept.promised_epoch:
        return False
    if opened.log_end < beat.flushed_end and beat.sequence > kept.cut_after_beat:
        return True
    return opened.state_version < beat.state_version and is_lasting(beat.state_version, beat.promised_epoch)
