"""Damages the files of a node as a bad disk or an outside writer does, while the node runs or not."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.faults.replication.damage import plan
from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.raw import Raw, first_difference, log_records

_BLOCK = 512
_ENTRY = 20
_NEAR_BYTES = 1024 * 1024
"""Replicas compare this much of their logs when they connect."""


class NothingToDamage(Exception):
    """The node has no such file, or no older copy that differs."""


PATTERNS: Mapping[str, str] = {
    plan.INDEX: "index/*",
    plan.JOURNAL: "journal/*",
    plan.TIMER: "timer/*",
    plan.CHECKPOINT: "checkpoint",
    plan.RECORD: "replication.json",
    plan.OTHERS: "[al]*[kt]",
}
"""The places of the files that are neither log nor queues."""


def apply(
    damage: Damage,
    data: Path,
    older: Path,
    choice: random.Random,
    patterns: Mapping[str, str] = PATTERNS,
) -> str:
    """Damages a node whose store is in `data`, and returns the change in words. `older` is an older copy.

    Raises NothingToDamage.
    """
    if damage.file == plan.LOG:
        path, at = _record(damage, data, choice)
    elif damage.file == plan.QUEUE:
        path, at = _entry(damage, data, choice)
    else:
        path, at = _one_of(patterns[damage.file], damage, data, choice)
    if damage.kind == plan.OLDER:
        return _bring_back(damage, path, data, older)
    if damage.kind == plan.MISSING:
        return _remove(damage, path, data)
    before = path.read_bytes()
    after = _CHANGES[damage.kind](before, at, choice)
    if after == before:
        raise NothingToDamage(f"{damage} changes nothing in {path.name}")
    _write(path, before, after)
    start, end = _changed(before, after)
    return f"{path.relative_to(data)} bytes {start} to {end}"


# ---- where


def _record(damage: Damage, data: Path, choice: random.Random) -> tuple[Path, int]:
    """A byte of a record of the log, in the part that the damage names."""
    records = [raw for raw in log_records(data / "commitlog") if len(raw.body) > 0]
    if len(records) < 20:
        raise NothingToDamage("the log is too short")
    end = records[-1].physical_offset + len(records[-1].data)
    choices = {
        plan.OLD: [raw for raw in records if raw.physical_offset < end - 1.2 * _NEAR_BYTES],
        plan.RECENT: [raw for raw in records[:-10] if raw.physical_offset > end - 0.8 * _NEAR_BYTES],
        plan.TAIL: records[-3:],
    }
    raw = choice.choice(choices[damage.place] or records[:10])
    first, last = raw.parts[damage.part or choice.choice(plan.PARTS)]
    return _place_of(data, raw, choice.randrange(first, max(last, first + 1)))


def _place_of(data: Path, raw: Raw, at: int) -> tuple[Path, int]:
    files = [file for file in sorted((data / "commitlog").iterdir()) if int(file.name) <= raw.physical_offset]
    return files[-1], raw.physical_offset - int(files[-1].name) + at


def _entry(damage: Damage, data: Path, choice: random.Random) -> tuple[Path, int]:
    """A byte of an entry of a queue."""
    files = [
        file for file in sorted((data / "consumequeue").glob("*/*/*")) if any(file.read_bytes()[:_ENTRY])
    ]
    if not files:
        raise NothingToDamage("no queue has an entry")
    path = choice.choice(files)
    return path, _placed(damage, path.read_bytes(), choice)


def _one_of(pattern: str, damage: Damage, data: Path, choice: random.Random) -> tuple[Path, int]:
    files = [file for file in sorted(data.glob(pattern)) if file.is_file() and file.stat().st_size]
    if not files:
        raise NothingToDamage(f"the node has no {pattern}")
    path = files[-1] if damage.place == plan.TAIL else choice.choice(files)
    return path, _placed(damage, path.read_bytes(), choice)


def _placed(damage: Damage, content: bytes, choice: random.Random) -> int:
    """A byte of the used part of a file: in its first third, its second third, or its end."""
    used = max(len(content.rstrip(b"\0")), 1)
    if damage.place == plan.TAIL:
        return max(used - choice.randrange(1, 24), 0)
    third = max(used // 3, 1)
    return choice.randrange(third) + (third if damage.place == plan.RECENT and used > third * 2 else 0)


# ---- how


def _flip(content: bytes, at: int, choice: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << choice.randrange(8)]) + content[at + 1 :]


def _zero(content: bytes, at: int, _: random.Random) -> bytes:
    start = at // _BLOCK * _BLOCK
    end = min(start + _BLOCK, len(content))
    return content[:start] + bytes(end - start) + content[end:]


def _cut(content: bytes, at: int, _: random.Random) -> bytes:
    return content[:at]


def _swap(content: bytes, at: int, choice: random.Random) -> bytes:
    """Swaps two blocks. In a small file they are smaller."""
    used = len(content.rstrip(b"\0"))
    size = min(_BLOCK, max(used // 4, 1))
    first = min(at // size * size, max(used - size, 0))
    others = [start for start in range(0, used - size + 1, size) if abs(start - first) >= size]
    second = choice.choice(others) if others else first
    low, high = sorted((first, second))
    return (
        (
            content[:low]
            + content[high : high + size]
            + content[low + size : high]
            + content[low : low + size]
            + content[high + size :]
        )
        if high > low
        else content
    )


_CHANGES: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    plan.FLIP: _flip,
    plan.ZERO: _zero,
    plan.CUT: _cut,
    plan.SWAP: _swap,
}


def _write(path: Path, before: bytes, after: bytes) -> None:
    """Writes the changed bytes into the same file, which a running broker may have mapped."""
    with path.open("r+b") as file:
        if len(after) < len(before) and before.startswith(after):
            file.truncate(len(after))
            return
        start, end = _changed(before, after)
        os.pwrite(file.fileno(), after[start:end], start)
        if len(after) < len(before):
            file.truncate(len(after))


def _changed(before: bytes, after: bytes) -> tuple[int, int]:
    """Returns the range outside which both are the same."""
    start, length = first_difference(before, after), max(len(before), len(after))
    if len(before) != len(after):
        return start, length
    return start, length - first_difference(before[::-1], after[::-1])


def _remove(damage: Damage, path: Path, data: Path) -> str:
    """Removes the file. Of the journal and the timer, an old damage takes the whole folder."""
    if damage.place == plan.OLD and damage.file in (plan.JOURNAL, plan.TIMER, plan.INDEX):
        shutil.rmtree(path.parent)
        return f"{path.parent.relative_to(data)}/ is missing"
    path.unlink()
    return f"{path.relative_to(data)} is missing"


def _bring_back(damage: Damage, path: Path, data: Path, older: Path) -> str:
    """Brings an older copy of the file back; of the journal, of the whole folder."""
    if damage.file in (plan.JOURNAL, plan.TIMER):
        return _bring_folder_back(path.parent, older / path.parent.name, data)
    top = data / path.relative_to(data).parts[0]
    candidates = [path, *sorted(top.rglob("*"), reverse=True)]
    for target in candidates:
        source = older / target.relative_to(data)
        if source.is_file() and target.is_file() and source.read_bytes() != target.read_bytes():
            _write(target, target.read_bytes(), source.read_bytes())
            return f"{target.relative_to(data)} is an older copy"
    raise NothingToDamage(f"no older copy of {path.relative_to(data)} differs")


def _bring_folder_back(folder: Path, older: Path, data: Path) -> str:
    if not older.is_dir() or _contents(older) == _contents(folder):
        raise NothingToDamage(f"no older copy of {folder.relative_to(data)} differs")
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    return f"{folder.relative_to(data)}/ is an older copy"


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
