"""Foreign keys in definitions of tables, and what changes of rows do through them."""

from __future__ import annotations

from typing import Any

import pytest

from metaq.pipelines.binlog_sync.cascades import Cascades, cascade_warnings
from metaq.pipelines.binlog_sync.reading.binlog_items import Rows
from metaq.pipelines.binlog_sync.reading.foreign_keys import ForeignKey, ForeignKeys, foreign_keys_of
from metaq.pipelines.binlog_sync.values.columns import Column, Definition

CREATED = """CREATE TABLE `ch` (
  `id` int(11) NOT NULL,
  `p2` int(11) COMMENT '\\n  CONSTRAINT `y` FOREIGN KEY (`a`) REFERENCES `b` (`c`) ON DELETE CASCADE',
  PRIMARY KEY (`id`),
  KEY `we``ird` (`p`),
  CONSTRAINT `one` FOREIGN KEY (`p2`) REFERENCES `p` (`id`) ON DELETE SET NULL ON UPDATE CASCADE,
  CONSTRAINT `none` FOREIGN KEY (`p2`) REFERENCES `p` (`id`) ON DELETE NO ACTION ON UPDATE RESTRICT,
  CONSTRAINT `we``ird` FOREIGN KEY (`p`, `q`) REFERENCES `o,``d`.`p` (`id`, `part`) ON DELETE CASCADE
) ENGINE=InnoDB"""


def test_the_foreign_keys_with_an_action() -> None:
    child = ("shop", "ch")
    assert foreign_keys_of(child, CREATED) == [
        ForeignKey(child, "one", ("shop", "p"), ("id",), on_delete=True, on_update=True),
        ForeignKey(child, "we`ird", ("o,`d", "p"), ("id", "part"), on_delete=True, on_update=False),
    ]


class FakeReader:
    database, table = "shop", "p"
    definition = Definition((Column("ID", "int32", False), Column("v", "text", True)), ("ID",))

    def images(self, rows: Any) -> Any:
        return iter(rows)


def changed(operation: str, *rows: dict[str, Any]) -> Rows:
    reader: Any = FakeReader()
    images: Any = rows
    return Rows(reader, operation, images, 0)


def key(child: str, parent: str, *, on_delete: bool = True, on_update: bool = False) -> ForeignKey:
    return ForeignKey(("shop", child), "k", ("shop", parent), ("id",), on_delete, on_update)


@pytest.mark.parametrize(
    ("item", "tables"),
    [
        (changed("delete", {"ID": 1, "v": ""}), {"a", "b", "c"}),
        (changed("update", {"ID": 1, "v": ""}, {"ID": 1, "v": "x"}), set()),
        (changed("update", {"ID": 1, "v": ""}, {"ID": 2, "v": ""}), {"d"}),
        (changed("insert", {"ID": 1, "v": ""}), set()),
    ],
)
def test_the_tables_that_a_change_reaches(item: Rows, tables: set[str]) -> None:
    cascades = Cascades()
    # c refers to itself, and d has no action on deletes.
    keys = (
        key("a", "p"),
        key("b", "a"),
        key("c", "b"),
        key("c", "c"),
        key("d", "p", on_delete=False, on_update=True),
    )
    cascades.watch(ForeignKeys(keys))
    assert {name for _, name in cascades.affected(item)} == tables
    assert cascades.watches("shop", "p") and not cascades.watches("shop", "d")
    cascades.update(ForeignKeys(), [("shop", "a")])
    if item.operation == "delete":
        assert not cascades.affected(item)


def test_what_could_not_be_checked_is_said() -> None:
    (warning,) = cascade_warnings(ForeignKeys(unchecked=("shop.a",)), "reread")
    assert "may not see the foreign keys of shop.a" in warning
    assert cascade_warnings(ForeignKeys(), "stop") == []
