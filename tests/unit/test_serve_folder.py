"""Which data folders a server accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import CommandError
from metaq.serve import _check_folder


def folder(tmp_path: Path, mode: int) -> Path:
    data = tmp_path / "my data"
    data.mkdir()
    data.chmod(mode)
    return data


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o2777])
def test_a_folder_that_everybody_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    data = folder(tmp_path, mode)
    with pytest.raises(CommandError, match="every account") as refused:
        _check_folder(str(data))
    assert f"chmod o-w '{data}'" in str(refused.value.hint)
    assert not list(data.iterdir())


@pytest.mark.parametrize(("mode", "warnings"), [(0o700, 0), (0o755, 0), (0o775, 1), (0o2770, 1), (0o1777, 1)])
def test_a_folder_that_a_group_may_change_is_a_warning(
    tmp_path: Path, mode: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    _check_folder(str(folder(tmp_path, mode)))
    assert len(caplog.records) == warnings


def test_a_folder_that_is_missing_is_made_later(tmp_path: Path) -> None:
    _check_folder(str(tmp_path / "missing" / "data"))
