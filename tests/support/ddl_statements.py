"""Draws statements on tables from the grammars of both servers: with prefixes, comments, quotes and modes.

A server may refuse a statement: then it is not in the binlog either.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

MODES = ("", "", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES")
NAMES = ("a", "b", "c", "T_1", "wei`rd", "ünï", "se lect", 'dou"ble', "a.b", "na#me", "back\\", "$9")
COLUMNS = ("x", "y", "z", "com,ma", "pa(ren", "ÄÖ")
HOSTILE_TEXTS = (
    "plain",
    "it's",
    'say "so',
    "C:\\",
    "\\",
    "we, RENAME TO x",
    "/* no comment",
    "-- none",
    "*/",
    "ü, ADD COLUMN w INT",
    "`",
)
PARTITIONED = "parts"


@dataclass(frozen=True)
class Drawn:
    """One statement with the settings of the session that it needs."""

    mode: str
    charset: str
    is_logged_by_statement: bool
    text: str

    @property
    def settings(self) -> list[str]:
        settings = [f"SET NAMES {self.charset}", f"SET SESSION sql_mode = '{self.mode}'"]
        return (
            [*settings, "SET SESSION binlog_format = STATEMENT"] if self.is_logged_by_statement else settings
        )

    @property
    def encoded(self) -> bytes:
        codec = {"utf8mb4": "utf-8", "latin1": "cp1252", "gbk": "gbk"}[self.charset]
        return self.text.encode(codec)


class DrawnStatements:
    """Draws statements for the tables of one database."""

    def __init__(self, chance: random.Random, server: str, database: str) -> None:
        self._chance = chance
        self._is_mariadb = server == "mariadb"
        self._database = database
        self._mode = ""

    def draw(self, tables: Sequence[str]) -> Drawn:
        """Draws a statement, mostly on one of these tables."""
        chance = self._chance
        modes = (*MODES, "ORACLE") if self._is_mariadb else MODES
        self._mode = chance.choice(modes)
        words = chance.choice(self._templates())(list(tables) or ["a"])
        text = self._joined(self._commented(words))
        if self._is_mariadb and chance.random() < 0.35:
            text = self._prefixed(text)
        charset = chance.choice(("utf8mb4", "utf8mb4", "latin1", "gbk"))
        if charset != "utf8mb4":
            try:
                text.encode("cp1252" if charset == "latin1" else "gbk")
            except UnicodeEncodeError:
                charset = "utf8mb4"
        # Logged by statement, a change of a temporary table looks like one of the table that it hides.
        by_statement = chance.random() < 0.1 and "TEMPORARY" not in text
        return Drawn(self._mode, charset, by_statement, text)

    # Pieces

    @property
    def _is_ansi(self) -> bool:
        return "ANSI_QUOTES" in self._mode or self._mode == "ORACLE"

    def _any_name(self) -> str:
        return self._chance.choice(NAMES)

    def _quoted(self, name: str) -> str:
        kinds = ["`"]
        if self._is_ansi:
            kinds.append('"')
        if name.isascii() and name.replace("_", "").isalnum():
            kinds.append("")
        quote = self._chance.choice(kinds)
        return quote + (name.replace(quote, quote * 2) if quote else name) + quote

    def _table(self, name: str) -> str:
        if self._chance.random() < 0.3:
            dot = self._chance.choice((".", " . ", "./* . */"))
            return f"{self._quoted(self._database)}{dot}{self._quoted(name)}"
        return self._quoted(name)

    def _text(self, text: str | None = None) -> str:
        text = self._chance.choice(HOSTILE_TEXTS) if text is None else text
        quote = "'" if self._is_ansi or self._chance.random() < 0.7 else '"'
        if "NO_BACKSLASH_ESCAPES" not in self._mode:
            text = text.replace("\\", "\\\\")
            if self._chance.random() < 0.5:
                return quote + text.replace(quote, "\\" + quote) + quote
        return quote + text.replace(quote, quote * 2) + quote

    def _gap(self) -> str:
        return self._chance.choice(
            (
                *[" "] * 12,
                "\n",
                "\t ",
                " /* 'x */ ",
                " /**/ ",
                " -- it's, DROP\n",
                " #` \n",
                " /*!99999 DROP*/ ",
            )
        )

    def _joined(self, words: list[str]) -> str:
        text = ""
        for word in words:
            text += word if not text else self._gap() + word
        return text

    def _commented(self, words: list[str]) -> list[str]:
        """Puts some of the words into comments that are executed."""
        if self._chance.random() > 0.3:
            return words
        begin = self._chance.randrange(len(words))
        end = self._chance.randrange(begin, len(words)) + 1
        kinds = ["/*!", "/*!40100", "/*!040100"]
        if self._is_mariadb:
            kinds += ["/*M!", "/*M!100100"]
        return [*words[:begin], self._chance.choice(kinds), *words[begin:end], "*/", *words[end:]]

    def _prefixed(self, text: str) -> str:
        prefix = self._chance.choice(
            (
                "SET STATEMENT max_statement_time=100 FOR ",
                "/* x */ SET /**/ STATEMENT lock_wait_timeout = (40 + 2), max_statement_time=90 FOR\n",
                "SET STATEMENT max_statement_time=100 FOR SET STATEMENT lock_wait_timeout=50 FOR ",
                "SET STATEMENT sql_mode='' FOR ",
                "set statement sql_mode='ANSI_QUOTES' for ",
            )
        )
        return prefix + text

    # Statements

    def _templates(self) -> list:
        often = [self._truncate, self._drop, self._rename, self._alter, self._alter, self._alter, self._alter]
        return [*often, self._create, self._create, self._index, self._partition, self._harmless, self._swap]

    def _truncate(self, tables: list[str]) -> list[str]:
        words = ["TRUNCATE", "TABLE"][: self._chance.choice((1, 2))]
        wait = ["NOWAIT"] if self._is_mariadb and self._chance.random() < 0.2 else []
        return [*words, self._table(self._chance.choice(tables)), *wait]

    def _drop(self, tables: list[str]) -> list[str]:
        names = [self._chance.choice(tables)]
        if self._chance.random() < 0.4:
            names.append(self._chance.choice((*tables, self._any_name())))
        listed = [word for name in dict.fromkeys(names) for word in (",", self._table(name))][1:]
        exists = ["IF", "EXISTS"] if self._chance.random() < 0.5 else []
        return ["DROP", "TABLE", *exists, *listed]

    def _rename(self, tables: list[str]) -> list[str]:
        old, new = self._chance.choice(tables), self._any_name()
        return ["RENAME", "TABLE", self._table(old), "TO", self._table(new)]

    def _swap(self, tables: list[str]) -> list[str]:
        one, other = self._chance.choice(tables), self._chance.choice(tables)
        table = self._table
        pairs = ((one, "swap"), (other, one), ("swap", other))
        listed = [word for old, new in pairs for word in (",", table(old), "TO", table(new))][1:]
        return ["RENAME", "TABLE", *listed]

    def _alter(self, tables: list[str]) -> list[str]:
        parts = [self._alteration() for _ in range(self._chance.choice((1, 1, 2, 3)))]
        listed = [word for part in parts for word in (",", *part)][1:]
        return ["ALTER", "TABLE", self._table(self._chance.choice(tables)), *listed]

    def _alteration(self) -> list[str]:
        chance = self._chance
        column = self._quoted(chance.choice(COLUMNS))
        match chance.randrange(14):
            case 0 | 1 | 2:
                kind = chance.choice(("INT", "VARCHAR(20)", "BIGINT"))
                default = "5" if kind != "VARCHAR(20)" else self._text()
                rest = chance.choice(
                    ([], ["NULL"], ["DEFAULT", default], ["NOT", "NULL", "DEFAULT", default])
                )
                more = ["COMMENT", self._text()] if chance.random() < 0.4 else []
                return ["ADD", *["COLUMN"][: chance.randrange(2)], column, kind, *rest, *more]
            case 3 | 4:
                return ["DROP", *["COLUMN"][: chance.randrange(2)], column]
            case 5 | 6:
                return ["COMMENT", *["="][: chance.randrange(2)], self._text()]
            case 7:
                return ["ADD", "INDEX", "(", "v", ",", "id", ")"]
            case 8:
                return ["MODIFY", "v", chance.choice(("BIGINT", "VARCHAR(30)"))]
            case 9:
                return ["CHANGE", "v", "v", "BIGINT", "DEFAULT", "4"]
            case 10:
                return ["DROP", "PRIMARY", "KEY", ",", "ADD", "PRIMARY", "KEY", "(", "id", ",", "n", ")"]
            case 11:
                to = chance.choice((["TO"], ["AS"], []))
                return ["RENAME", *to, self._table(self._any_name())]
            case 12:
                return ["ALTER", "v", "SET", "DEFAULT", "9"]
            case _:
                return ["ENGINE", "=", chance.choice(("InnoDB", "InnoDB", "MyISAM"))]

    def _create(self, tables: list[str]) -> list[str]:
        chance = self._chance
        head = ["CREATE"]
        if self._is_mariadb and chance.random() < 0.3:
            head += ["OR", "REPLACE"]
        if chance.random() < 0.1:
            head.append("TEMPORARY")
        head.append("TABLE")
        if "OR" not in head and chance.random() < 0.4:
            head += ["IF", "NOT", "EXISTS"]
        head.append(self._table(chance.choice((self._any_name(), chance.choice(tables)))))
        columns = ["(", "id", "INT", ",", "n", "INT", ",", "v", "INT", ",", "PRIMARY", "KEY", "(id)", ")"]
        source = self._table(chance.choice(tables))
        rest = chance.choice(
            (
                [*columns, "COMMENT", self._text()],
                columns,
                ["LIKE", source],
                ["(", "PRIMARY", "KEY", "(id)", ")", "AS", "SELECT", "id, n, v", "FROM", source],
                [*columns, "ENGINE=MyISAM"],
                [*columns, "WITH", "SYSTEM", "VERSIONING"],
            )
        )
        return [*head, *rest]

    def _index(self, tables: list[str]) -> list[str]:
        table, name = (
            self._table(self._chance.choice(tables)),
            self._quoted(self._chance.choice(("i", "PRIMARY"))),
        )
        if self._chance.random() < 0.5:
            return ["DROP", "INDEX", name, "ON", table]
        return ["CREATE", "INDEX", name, "ON", table, "(v)"]

    def _partition(self, tables: list[str]) -> list[str]:
        table, other = self._table(PARTITIONED), self._table(self._chance.choice(tables))
        own = [["CONVERT", "PARTITION", "p0", "TO", "TABLE", self._table(self._any_name())]]
        rest = self._chance.choice(
            [
                ["TRUNCATE", "PARTITION", "p0"],
                ["DROP", "PARTITION", "p0"],
                ["EXCHANGE", "PARTITION", "p1", "WITH", "TABLE", other],
                ["REORGANIZE", "PARTITION", "p1", "INTO", "(PARTITION p1 VALUES LESS THAN MAXVALUE)"],
                ["PARTITION", "BY", "HASH", "(id)", "PARTITIONS", "3"],
                ["REMOVE", "PARTITIONING"],
                *(own if self._is_mariadb else []),
            ]
        )
        return ["ALTER", "TABLE", table, *rest]

    def _harmless(self, tables: list[str]) -> list[str]:
        table = self._table(self._chance.choice(tables))
        number = self._chance.randrange(1000)
        body = ["BEGIN", "DELETE", "FROM", table, ";", "END"]
        return self._chance.choice(
            (
                ["CREATE", "VIEW", f"view{number}", "AS", "SELECT", "*", "FROM", table],
                ["CREATE", "PROCEDURE", f"p{number}()", *body],
                ["CREATE", "TRIGGER", f"r{number}", "BEFORE", "INSERT", "ON", table, "FOR", "EACH", "ROW",
                 "SET", "@x", "=", self._text()],
                ["ANALYZE", "TABLE", table],
                ["OPTIMIZE", "TABLE", table],
                ["CREATE", "USER", f"u{number}", "IDENTIFIED", "BY", self._text("Rename-7 TABLE x")],
                ["DROP", "USER", f"u{number}"],
                ["GRANT", "SELECT", "ON", table, "TO", "metaq"],
                ["DROP", "TEMPORARY", "TABLE", "IF", "EXISTS", table],
                ["ALTER", "DATABASE", self._quoted(self._database), "COLLATE", "utf8mb4_bin"],
            )
        )  # fmt: skip
