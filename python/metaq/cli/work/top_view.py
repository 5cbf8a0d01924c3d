"""The live view of `metaq top`, on Textual."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Header, Static

from metaq.cli.printing.formats import printable, span
from metaq.cli.printing.top_tables import PARTS, Part
from metaq.cli.work.snapshots import Snapshot, with_gone_brokers
from metaq.errors import MetaqError

STALE = "dim"


class TopView(App[None]):
    """Three tables that follow the cluster. While it does not answer, the last values stay, greyed, with
    their age."""

    CSS = """
    Static { height: 1; padding: 0 1; }
    #state { background: $boost; }
    DataTable { height: auto; max-height: 40%; margin-bottom: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause"),
        ("r", "look", "Look now"),
        ("b", "focus_table('brokers')", "Brokers"),
        ("t", "focus_table('topics')", "Topics"),
        ("g", "focus_table('groups')", "Groups"),
    ]
    TITLE = "metaq top"

    def __init__(self, take: Callable[[], Snapshot], interval_s: float, limit: int) -> None:
        super().__init__()
        self._take = take
        self._interval_s = interval_s
        self._limit = limit
        self._is_paused = False
        self._is_looking = False
        self._last: Snapshot | None = None

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static("Looking …", id="state")
        for part in PARTS:
            yield Static(part.title)
            yield DataTable[Text](id=part.key, cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        for part in PARTS:
            table = self._table(part)
            for column in part.columns:
                table.add_column(column.title, key=column.key)
        self.action_look()
        self.set_interval(self._interval_s, self._tick)

    def _tick(self) -> None:
        if not self._is_paused:
            self.action_look()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._say("Paused; p continues." if self._is_paused else "Looking …")

    def action_focus_table(self, key: str) -> None:
        self.query_one(f"#{key}").focus()

    def action_look(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._look()

    @work(thread=True)
    def _look(self) -> None:
        """Asks the cluster in a thread, so that keys work meanwhile."""
        try:
            taken = self._take()
        except MetaqError as error:
            self.call_from_thread(self._fail, str(error))
        else:
            self.call_from_thread(self._show, taken)

    def _show(self, taken: Snapshot) -> None:
        self._is_looking = False
        self._last = taken = with_gone_brokers(taken, self._last)
        when = time.strftime("%H:%M:%S", time.localtime(taken.taken_ms / 1000))
        problems = f"; not complete: {'; '.join(taken.failures)}" if taken.failures else ""
        self._say(f"At {when}{problems}")
        self._fill(taken, style="")

    def _fail(self, reason: str) -> None:
        self._is_looking = False
        if self._last is None:
            self._say(reason)
            return
        age = span(time.time() * 1000 - self._last.taken_ms)
        self._say(f"The values are {age} old: {reason}")
        self._fill(self._last, style=STALE)

    def _fill(self, taken: Snapshot, *, style: str) -> None:
        record = taken.record(self._limit)
        for part in PARTS:
            table = self._table(part)
            row = table.cursor_row
            table.clear()
            for values in record[part.key]:
                is_lost = values.get("error") is not None
                cells = [
                    Text(
                        column.text(values),
                        style=STALE if is_lost else style,
                        justify="right" if column.right else "left",
                    )
                    for column in part.columns
                ]
                table.add_row(*cells)
            table.move_cursor(row=row)

    def _table(self, part: Part) -> DataTable[Text]:
        table: DataTable[Text] = self.query_one(f"#{part.key}", DataTable)
        return table

    def _say(self, text: str) -> None:
        self.query_one("#state", Static).update(Text(printable(text)))
