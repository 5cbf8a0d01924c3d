"""Actions on topics."""

from __future__ import annotations

from metaq.console.actions.action import Action, Call, Outcome, Preview


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
        return Outcome(call.t("actions.create_topic_done", topic=topic), path=f"/topics/{topic}")


class DeleteTopic(Action):
    """Deletes a topic with its messages."""

    name = "delete-topic"

    def target(self, call: Call) -> str:
        return call.field("topic")

    async def preview(self, call: Call) -> Preview:
        topic = call.required("topic")
        shown = await call.console.admin.topics.show(topic)
        groups = await call.console.admin.topics.groups(topic)
        by_broker: dict[str, list[int]] = {}
        for state in shown.queues:
            by_broker.setdefault(state.queue.broker, []).append(state.messages)
        rows = tuple(
            (broker, str(len(counts)), f"{sum(counts):,}") for broker, counts in sorted(by_broker.items())
        )
        warnings = [call.t("actions.delete_topic_groups", groups=", ".join(sorted(groups)))] if groups else []
        return Preview(
            call.command("topic", "delete", topic, "--yes"),
            call.t("actions.delete_topic_effect", topic=topic, messages=f"{shown.messages:,}"),
            columns=(call.t("common.broker"), call.t("common.queues"), call.t("common.messages")),
            rows=rows,
            basis=[topic, sorted(by_broker), sorted(groups)],
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
