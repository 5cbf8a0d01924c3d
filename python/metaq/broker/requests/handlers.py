"""All handlers of a master, put together from its state and its node."""

from __future__ import annotations

from metaq._core import BrokerPlane
from metaq.broker.background.subscription_inquiry import Inquiry
from metaq.broker.node import Node
from metaq.broker.requests.admin import Admin
from metaq.broker.requests.consumption import Consumption, ConsumptionParts
from metaq.broker.requests.delayed_messages import DelayedMessages
from metaq.broker.requests.figures import Figures
from metaq.broker.requests.heartbeats import Heartbeats
from metaq.broker.requests.messages import Messages
from metaq.broker.requests.purge import PurgeRequests
from metaq.broker.requests.recall import Recalls
from metaq.broker.requests.relays import Relays
from metaq.broker.requests.replication import ReplicationRequests
from metaq.broker.requests.replies import Replies
from metaq.broker.requests.resets import ResetParts, Resets
from metaq.broker.requests.send_back import Retries
from metaq.broker.requests.timer_progress import TimerProgress
from metaq.broker.requests.topics import TopicRequests
from metaq.broker.requests.unsupported import Unsupported
from metaq.broker.state.broker_state import BrokerState
from metaq.broker.state.copy_budget import CopyBudget
from metaq.broker.state.groups import GroupDeletion
from metaq.ha.operators.group_control import StandAlone
from metaq.protocol.dispatch import Handlers


def master_handlers(node: Node, plane: BrokerPlane, state: BrokerState, admin: Admin) -> Handlers:
    """Everything that handles requests, apart from the transaction checks, which a master runs as well."""
    handlers = Handlers(
        state.groups,
        state.locks,
        state.offsets,
        state.delays,
        state.statistics,
        admin,
        Unsupported(),
        ReplicationRequests(
            node.group or node.lone_drain or StandAlone(node.options.broker.name, node.address),
            node.store,
            node.clock,
            node.pools,
        ),
    )
    for owner in (
        *_of_messages(node, plane, state, admin),
        *_of_groups(node, plane, state),
        *_of_clients(node, state),
        TimerProgress(plane, node.clock),
    ):
        handlers.add(owner)
    return handlers


def _of_messages(node: Node, plane: BrokerPlane, state: BrokerState, admin: Admin) -> tuple[object, ...]:
    topics, groups, store = state.topics, state.groups, node.store
    budget = CopyBudget(node.options.send_back_bytes_per_second)
    inquiry = Inquiry(
        node.clients, node.clock, node.pump.invoke, state.filters, node.pump.waiting_for_client, node.pools
    )
    return (
        Messages(topics, groups, store, plane, state.filters, inquiry, node.pools),
        Retries(topics, groups, store, plane, node.pools, budget),
        Recalls(node.options, node.clock, plane, topics, lambda: admin.permission, node.journal, node.pools),
        DelayedMessages(node.options, node.clock, plane, lambda: admin.permission, node.pools),
        TopicRequests(topics, groups, store, plane, node.options.broker.name, node.address, node.pools),
        PurgeRequests(topics, state.starts),
    )


def _of_groups(node: Node, plane: BrokerPlane, state: BrokerState) -> tuple[object, ...]:
    name = node.options.broker.name
    read = ConsumptionParts(
        broker_name=name,
        clock=node.clock,
        plane=plane,
        store=node.store,
        topics=state.topics,
        groups=state.groups,
        clients=node.clients,
        statistics=state.statistics,
        address=node.address,
        pools=node.pools,
    )
    return (
        GroupDeletion(state.groups, plane, node.pools),
        Consumption(read),
        Figures(read),
        Resets(
            ResetParts(
                plane=plane,
                store=node.store,
                topics=state.topics,
                groups=state.groups,
                clients=node.clients,
                offsets=state.offsets,
                statistics=state.statistics,
                switches=node.switches,
                broker_name=name,
                notices_bytes_max=node.options.reset_notices_bytes_max,
                tell=node.pump.send_oneway,
                pools=node.pools,
            )
        ),
    )


def _of_clients(node: Node, state: BrokerState) -> tuple[object, ...]:
    clients, topics, options = node.clients, state.topics, node.options
    return (
        Heartbeats(clients, state.groups, topics, node.clock, state.filters, node.pools),
        Relays(node.pump, clients, node.store, topics, state.groups, options, node.pools),
        Replies(node.pump, clients, topics, node.clock, node.switches, node.address, options),
    )
