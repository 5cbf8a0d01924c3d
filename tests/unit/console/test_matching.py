"""Names that match what was typed."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.console.matching import best_matches


@dataclass
class Row:
    kind: str = "normal"


def test_names_of_the_cluster_itself_come_last() -> None:
    rows = {
        "%RETRY%orders": Row("retry"),
        "%DLQ%orders": Row("dead-letter"),
        "orders": Row(),
        "old-orders": Row(),
        "orders-of-the-system": Row("system"),
    }
    assert best_matches(rows, "orders") == [
        *("orders", "old-orders"),
        *("orders-of-the-system", "%DLQ%orders", "%RETRY%orders"),
    ]
    assert best_matches(rows, "ORD", 1) == ["orders"]
    assert best_matches(rows, "nothing") == []
