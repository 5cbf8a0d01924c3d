"""Actions on messages that wait: delayed ones and half messages."""

from __future__ import annotations

from metaq.admin.waiting.results import Decision
from metaq.console import figures
from metaq.console.actions.action import Action, Call, Outcome, Preview
from metaq.console.rendering import utc_offset_min


class RecallMessage(Action):
    """Recalls a delayed message, so that nobody gets it."""

    name = "recall-message"

    def target(self, call: Call) -> str:
        return call.field("id")

    async def preview(self, call: Call) -> Preview:
        id, broker = call.required("id"), call.field("broker") or None
        message = await call.console.admin.delayed.find(id, broker=broker)
        due = figures.moment(message.due_ms, utc_offset_min(call.request)) or ""
        return Preview(
            call.command("delayed", "recall", id, "--yes"),
            call.t("actions.recall_message_effect", topic=message.topic),
            columns=(call.t("common.message"), call.t("delayed.due"), call.t("common.size")),
            rows=((message.id, due, figures.size(message.size_bytes) or ""),),
            basis=[message.offset_id, message.due_ms, message.is_recalled],
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        id, broker = call.required("id"), call.field("broker") or None
        message = await call.console.admin.delayed.recall(id, broker=broker)
        return Outcome(call.t("actions.recall_message_done", id=message.id))


class _Decide(Action):
    """Ends a transaction by hand, instead of its producer."""

    decision: Decision

    def target(self, call: Call) -> str:
        return call.field("id")

    async def preview(self, call: Call) -> Preview:
        id, broker = call.required("id"), call.field("broker") or None
        found = await call.console.admin.transactions.find(id, broker=broker)
        began = figures.moment(found.began_ms, utc_offset_min(call.request)) or ""
        facts = (
            ("common.message", found.id),
            ("common.topic", found.topic),
            ("transactions.producer_group", found.producer_group),
            ("messages.tag", found.tags or "–"),
            ("messages.keys", " ".join(found.keys) or "–"),
            ("common.size", figures.size(found.size_bytes) or ""),
            ("transactions.began", began),
            ("transactions.checks", f"{found.checks}/{found.checks_max}"),
        )
        return Preview(
            call.command("transaction", self.decision, id, "--yes"),
            call.t(f"actions.{self.decision}_effect", topic=found.topic),
            columns=(call.t("actions.column_fact"), call.t("actions.column_value")),
            rows=tuple((call.t(key), text) for key, text in facts),
            basis=[found.transaction_id, found.id],
            warnings=(call.t("actions.decide_warning", group=found.producer_group),),
            copied=found.id,
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        id, broker = call.required("id"), call.field("broker") or None
        found = await call.console.admin.transactions.decide(id, self.decision, broker=broker)
        return Outcome(call.t(f"actions.{self.decision}_done", id=found.id, topic=found.topic))


class CommitTransaction(_Decide):
    """Commits a half message: consumers get it."""

    name = "commit-transaction"
    decision = "commit"


class RollBackTransaction(_Decide):
    """Rolls a half message back: nobody gets it."""

    name = "roll-back-transaction"
    decision = "rollback"


ACTIONS = (RecallMessage, CommitTransaction, RollBackTransaction)
