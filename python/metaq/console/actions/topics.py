"""Actions on topics."""

from __future__ import annotations

from metaq.console.actions.action import Action, Call, Outcome, Preview
from metaq.console.actions.silence import at_least, silence_warnings, silent_brokers
from metaq.console.rendering import segment


class CreateTopic(Action):
    """Creates a topic on every broker of the cluster."""

    name = "create-topic"
    form = "actions/create_topic.html"

    def target(self, call: Call) -> str:
        return call.field("topic")

    async def preview(self, call: Call) -> Preview:
        topic, queues = call.required("topic"), call.number("queues", 1, 1024) or 8
        command = call.command("topic", "create", topic, "--queues", str(queues))
        return Preview(
            command, call.t("actions.create_topic_effect", topic=topic, queues=queues), basis=[topic, queues]
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        topic, queues = call.required("topic"), call.number("queues", 1, 1024) or 8
        await call.console.admin.topics.create(topic, queues=queues)
        return Outcome(call.t("actions.create_topic_done", topic=topic), path=f"/topics/{segment(topic)}")


class DeleteTopic(Action):
    """Deletes a topic with its messages."""

    name = "delete-topic"

    def target(self, call: Call) -> str:
        return call.field("topic")

    async def preview(self, call: Call) -> Preview:
        topic = call.required("topic")
        shown = await call.console.admin.topics.show(topic)
        groups = await call.console.admin.topics.groups(topic)
        silent = silent_brokers(call, shown.failures, topic=topic)
        by_broker: dict[str, list[int]] = {}
        for state in shown.queues:
            by_broker.setdefault(state.queue.broker, []).append(state.messages)
        rows = [
            (broker, str(len(counts)), f"{sum(counts):,}") for broker, counts in sorted(by_broker.items())
        ]
        rows += [(broker, call.t("common.unknown"), call.t("common.unknown")) for broker in silent]
        warnings = silence_warnings(call, silent)
        if groups:
            warnings.append(call.t("actions.delete_topic_groups", groups=", ".join(sorted(groups))))
        messages = at_least(shown.messages, silent)
        return Preview(
            call.command("topic", "delete", topic, "--yes"),
            call.t("actions.delete_topic_effect", topic=topic, messages=messages),
            columns=(call.t("common.broker"), call.t("common.queues"), call.t("common.messages")),
            rows=tuple(rows),
            basis=[topic, sorted(by_broker), sorted(groups), silent],
            typed_name=topic,
            warnings=tuple(warnings),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        topic = call.required("topic")
        brokers = await call.console.admin.topics.delete(topic)
        return Outcome(
            call.t("actions.delete_topic_done", topic=topic, brokers=", ".join(brokers)), path="/topics"
        )


ACTIONS = (CreateTopic, DeleteTopic)
