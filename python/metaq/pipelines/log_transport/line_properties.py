"""The properties of a message that holds a line. log-lake reads them."""

from __future__ import annotations

from typing import Final

FILE_ID: Final = "log.id"
"""An id of the file that stays the same when it is renamed."""
LINE_AT: Final = "log.at"
"""The byte at which the line begins, or its number in standard input. With the id it identifies the line."""
FILE: Final = "log.file"
HOST: Final = "log.host"
IS_CUT: Final = "log.cut"
"""Present, and "true", if more of the same line follows."""


def line_properties(file_id: str, at: int, file: str, host: str, *, is_cut: bool) -> dict[str, str]:
    properties = {FILE_ID: file_id, LINE_AT: str(at), FILE: file, HOST: host}
    if is_cut:
        properties[IS_CUT] = "true"
    return properties
