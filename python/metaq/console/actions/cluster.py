"""Actions on brokers: switch the master of a group, drain a node, change a setting."""

from __future__ import annotations

from metaq.admin.health.redaction import without_secrets
from metaq.console.actions.action import Action, Call, FormError, Outcome, Preview
from metaq.console.figures import size, span
from metaq.console.rendering import segment
from metaq.protocol.commands.replication import GroupStatus, NodeStatus


class SwitchMaster(Action):
    """Makes another node of a broker group master."""

    name = "switch-master"
    form = "actions/switch_master.html"

    async def choices(self, call: Call) -> dict[str, object]:
        group = await call.console.admin.brokers.group(call.required("broker_group"))
        return {"group": group, "nodes": [node for node in group.nodes if node.role != "master"]}

    def target(self, call: Call) -> str:
        return f"{call.field('broker_group')}/{call.field('node')}"

    async def preview(self, call: Call) -> Preview:
        group = await call.console.admin.brokers.group(call.required("broker_group"))
        node = _node(call, group, call.required("node"))
        if node.role == "master":
            raise FormError(call.t("actions.switch_master_is", node=node.id, group=group.name))
        warnings = []
        if node.id not in group.in_sync:
            warnings.append(call.t("actions.switch_master_behind", node=node.id))
        return Preview(
            call.command("cluster", "switch", group.name, "--to", str(node.id), *_of_cluster(call, group)),
            call.t("actions.switch_master_effect", node=node.id, group=group.name, master=group.master),
            columns=_node_columns(call),
            rows=tuple(_node_row(call, one) for one in group.nodes),
            basis=[group.name, group.epoch, group.master, sorted(group.in_sync), node.id],
            warnings=tuple(warnings),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        name = call.required("broker_group")
        done = await call.console.admin.brokers.switch(name, int(call.required("node")))
        return Outcome(
            call.t(
                "actions.switch_master_done", node=done.master, group=name, ms=done.took_ms, epoch=done.epoch
            ),
            path="/cluster",
        )


class DrainBroker(Action):
    """Takes a node of a broker group out of service."""

    name = "drain-broker"

    def target(self, call: Call) -> str:
        return f"{call.field('broker_group')}/{call.field('node')}"

    async def preview(self, call: Call) -> Preview:
        group = await call.console.admin.brokers.group(call.required("broker_group"))
        node = _node(call, group, call.required("node"))
        label = f"{group.name}/{node.id}"
        warnings = []
        if node.role == "master":
            warnings.append(call.t("actions.drain_broker_master"))
        left = len(set(group.in_sync) - {node.id})
        if left < group.min_in_sync:
            warnings.append(call.t("actions.drain_broker_few", left=left, least=group.min_in_sync))
        return Preview(
            call.command("broker", "drain", label, *_of_cluster(call, group)),
            call.t("actions.drain_broker_effect", broker=label),
            columns=_node_columns(call),
            rows=tuple(_node_row(call, one) for one in group.nodes),
            basis=[label, group.epoch, group.master, sorted(group.in_sync)],
            typed_name=label,
            warnings=tuple(warnings),
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        label = f"{call.required('broker_group')}/{call.required('node')}"
        await call.console.admin.brokers.drain(label)
        return Outcome(call.t("actions.drain_broker_done", broker=label), path="/cluster")


def _of_cluster(call: Call, group: GroupStatus) -> tuple[str, ...]:
    """Returns the flag for a cluster whose name is not the default one."""
    health = call.console.live.health.value
    brokers = () if health is None else health.brokers
    cluster = next((one.cluster for one in brokers if one.name == group.name), "")
    return ("--cluster", cluster) if cluster not in ("", "DefaultCluster") else ()


def _node(call: Call, group: GroupStatus, text: str) -> NodeStatus:
    node = group.node(int(text)) if text.isascii() and text.isdecimal() and len(text) < 10 else None
    if node is None or len(group.nodes) < 2:
        raise FormError(call.t("actions.switch_master_none", group=group.name))
    return node


def _node_columns(call: Call) -> tuple[str, ...]:
    return tuple(call.t(f"actions.column_{name}") for name in ("node", "address", "role", "state", "lag"))


def _node_row(call: Call, node: NodeStatus) -> tuple[str, ...]:
    parts = [text for text in (size(node.lag_bytes), span(node.lag_ms)) if text is not None]
    lag = "–" if node.role == "master" else ", ".join(parts) or call.t("common.unknown")
    state = call.t(f"cluster.state_{node.state.replace(' ', '_')}")
    return str(node.id), node.address, call.t(f"cluster.role_{node.role}"), state, lag


class ChangeSetting(Action):
    """Changes one setting of a running broker."""

    name = "change-setting"
    form = "actions/change_setting.html"

    async def choices(self, call: Call) -> dict[str, object]:
        address = _address(call)
        values = without_secrets((await call.console.admin.brokers.configuration(address)).values)
        changeable = await call.console.admin.brokers.changeable_settings(address) or frozenset()
        setting = call.field("setting")
        return {
            "settings": sorted(name for name in changeable if name in values),
            "setting": setting,
            "value": values.get(setting) or "",
        }

    def target(self, call: Call) -> str:
        return f"{call.field('broker')} {call.field('setting')}"

    async def preview(self, call: Call) -> Preview:
        broker, setting = call.required("broker"), call.required("setting")
        address, value = _address(call), call.field("value")
        brokers = call.console.admin.brokers
        changeable = await brokers.changeable_settings(address)
        values = (await brokers.configuration(address)).values
        if changeable is None or setting not in changeable:
            raise FormError(call.t("actions.change_setting_not_allowed", setting=setting))
        before = without_secrets(values).get(setting)
        if values.get(setting) == value:
            raise FormError(call.t("actions.nothing_changes"))
        named = address if "/" in broker else broker
        return Preview(
            call.command("cluster", "config", "set", named, f"{setting}={value}"),
            call.t("actions.change_setting_effect", setting=setting, broker=broker),
            columns=tuple(call.t(f"actions.column_{name}") for name in ("setting", "before", "after")),
            rows=((setting, _shown(call, before), _shown(call, value)),),
            basis=[address, setting, values.get(setting)],
        )

    async def apply(self, call: Call, preview: Preview) -> Outcome:
        broker, setting, value = call.required("broker"), call.required("setting"), call.field("value")
        await call.console.admin.brokers.configure(_address(call), {setting: value})
        name, _, node = broker.partition("/")
        sentence = call.t("actions.change_setting_done", setting=setting, broker=broker, value=value)
        return Outcome(
            sentence,
            path=f"/cluster/{segment(name)}/configuration" + (f"?node={segment(node)}" if node else ""),
        )


def _shown(call: Call, value: str | None) -> str:
    return call.t("common.unknown") if value is None else value or call.t("actions.empty_value")


def _address(call: Call) -> str:
    """Returns the address of a broker that the console knows: it connects to no other."""
    broker = call.required("broker")
    row = (call.console.live.brokers.value or {}).get(broker)
    if row is None:
        raise FormError(call.t("cluster.no_broker", broker=broker))
    return row.health.address


ACTIONS = (SwitchMaster, DrainBroker, ChangeSetting)
