"""The secret of a broker group that signs recall handles."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from metaq.broker.state.recall_key import is_signed, load_recall_key, recall_key
from metaq.journal import Journal, NotWritten
from tests.support.waiting import run


def test_a_group_has_one_key_after_a_restart_and_on_its_replicas(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Journal.open(tmp_path / "master")
        key = await load_recall_key(master)
        assert key is not None and len(key) == 32
        assert await load_recall_key(master) == key
        replica = Journal.open(tmp_path / "replica")
        await replica.reset(master.snapshot())
        # It becomes master.
        replica.begin_epoch(2)
        assert await load_recall_key(replica) == key
        await master.close()
        again = Journal.open(tmp_path / "master")
        assert recall_key(again) == key
        await again.close()
        await replica.close()
        other = Journal.open(tmp_path / "other")
        assert await load_recall_key(other) != key
        await other.close()

    run(scenario)


def test_a_broker_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)

        async def full(_: object) -> None:
            raise NotWritten("the disk is full")

        monkeypatch.setattr(journal, "write", full)
        assert await load_recall_key(journal) is None
        await journal.close()

    run(scenario)


def test_signatures() -> None:
    made = base64.urlsafe_b64encode(hmac.new(b"k", b"text", hashlib.sha256).digest()[:16]).decode()
    assert is_signed(b"k", "text", made)
    assert not is_signed(b"l", "text", made)
    assert not is_signed(b"k", "texts", made)
    assert not is_signed(b"k", "text", "")
    assert not is_signed(b"k", "text", "é")
    assert not is_signed(None, "text", made)
