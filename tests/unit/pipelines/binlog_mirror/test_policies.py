"""The policies of tables, and the errors and reports that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.pipelines import DifferingKey, TableVerification
from metaq.pipelines.binlog_mirror.config import MirrorConfig, read_mirror_config
from metaq.pipelines.binlog_mirror.delta import indexed_columns
from metaq.pipelines.binlog_mirror.delta_quarantine import constrained
from metaq.pipelines.binlog_mirror.policies import TablePolicy
from metaq.pipelines.binlog_mirror.refusals import VALUE_CHARACTERS_MAX, Refusal
from metaq.pipelines.binlog_mirror.verify import with_reasons
from metaq.pipelines.binlog_sync.config import SECTIONS, read_config


def read(tmp_path: Path, lines: str) -> MirrorConfig:
    path = tmp_path / "sync.toml"
    path.write_text(
        '[source]\nuser = "u"\ntables = ["shop.*"]\n[topic]\nname = "changes"\n[state]\nfile = "s"\n'
        f'[mirror]\npath = "mirror"\n{lines}'
    )
    # Both pipelines read the file.
    read_config(path)
    return read_mirror_config(path, SECTIONS)


def test_the_first_matching_section_with_a_key_decides(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        'refused = "quarantine"\n[tables."shop.log_*"]\nrefused = "skip"\n'
        '[tables."shop.*"]\nrefused = "stop"\ndropped = "archive"\n',
    )
    of = config.policies.of
    assert of(("other", "t")) == TablePolicy("quarantine", "empty")
    assert of(("shop", "orders")) == TablePolicy("stop", "archive")
    assert of(("shop", "log_web")) == TablePolicy("skip", "archive")
    assert read(tmp_path, "").policies.of(("shop", "t")) == TablePolicy("stop", "empty")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('[tables.shop]\nrefused = "skip"', r"tables\.shop is not DATABASE\.TABLE"),
        ('[tables."shop.t"]\nrefused = "ignore"', r"tables\.shop\.t\.refused = 'ignore': it must be"),
        ('[tables."shop.t"]\nrefuse = "skip"', "did you mean refused"),
        ('refused = "drop"', r"mirror\.refused = 'drop'"),
    ],
)
def test_wrong_policies(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, lines)


def test_an_error_shows_the_beginning_of_a_long_value() -> None:
    refusal = Refusal("shop.t", '["7"]', "note", '"' + "x" * 100_000 + '"', "it is too long")
    text = str(refusal)
    assert text.startswith('column note of row ["7"] of shop.t is refused: it is too long; its value is "xxx')
    assert text.endswith("x… (100,002 characters)") and len(text) < VALUE_CHARACTERS_MAX + 150
    assert refusal.summary == "column note: it is too long"


def test_verification_gives_the_reason_of_a_row_in_quarantine() -> None:
    keys = (DifferingKey('["7"]', "only in the source"), DifferingKey('["8"]', "different"))
    refusals = [Refusal("shop.t", '["7"]', "note", '"x"', "too long")]
    assert [key.what for key in with_reasons(keys, refusals)] == [
        "only in the source; in quarantine: column note: too long",
        "different",
    ]
    kept = TableVerification("shop.t", mirror_rows=7, note="the source has dropped it", is_kept=True)
    assert kept.is_same


def test_the_column_of_a_constraint() -> None:
    columns = ("id", "Amount", "note", "two words")
    assert constrained("metaq_deleted OR amount > 0", columns) == "Amount"
    assert constrained("`two words` <> ''", columns) == "two words"
    assert constrained("amount > id", columns) == constrained("1 = 2", columns) == ""


def test_statistics_cover_the_key() -> None:
    columns = [f"c{number}" for number in range(50)]
    assert indexed_columns(columns, ("c0",)) == 32
    assert indexed_columns(columns, ("C40", "c2")) == 41
    assert indexed_columns(columns, ("gone",)) == 32
