"""Maps character sets of the database to codecs of Python."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Final

_CODECS: Final = {
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
    "ascii": "ascii",
    "latin1": "cp1252",
    "cp1252": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "koi8r": "koi8-r",
    "koi8_r": "koi8-r",
    "koi8u": "koi8-u",
    "koi8_u": "koi8-u",
    "tis620": "tis-620",
    "big5": "big5",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "euckr": "euc-kr",
    "cp932": "cp932",
    "ujis": "euc-jp",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}

# The database's latin1 is cp1252 with control characters for the five bytes that cp1252 leaves undefined.
_LATIN1: Final = "".join(
    chr(byte) if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else bytes((byte,)).decode("cp1252")
    for byte in range(256)
)


def codec_of(charset: str) -> str | None:
    """Returns the name of Python's codec; None if there is none."""
    return _CODECS.get(charset.lower())


def decoder_of(charset: str) -> Callable[[bytes], str] | None:
    """Returns a function that decodes bytes of a character set; None if it is unknown.

    The function raises UnicodeDecodeError.
    """
    codec = codec_of(charset)
    if codec is None:
        return None
    if codec == "cp1252":
        return lambda raw: codecs.charmap_decode(raw, "strict", _LATIN1)[0]
    if codec == "utf-8":
        return bytes.decode
    return lambda raw: raw.decode(codec)
