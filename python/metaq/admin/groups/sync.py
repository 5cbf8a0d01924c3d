"""`Admin.groups` for plain code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from metaq.admin.groups import consumer_groups
from metaq.admin.limits import Rate
from metaq.admin.positions import Position
from metaq.admin.results import (
    Group,
    GroupName,
    GroupOverview,
    Groups,
    GroupSettings,
    Limits,
    Members,
    Progress,
    Reset,
    RunningMembers,
)
from metaq.admin.topic_figures import Advance
from metaq.client.portal import Portal
from metaq.client.session.routes import Queue


class ConsumerGroups:
    """Creates, changes, lists, shows, resets and deletes consumer groups."""

    def __init__(self, portal: Portal, work: consumer_groups.ConsumerGroups) -> None:
        self._portal = portal
        self._work = work

    def create(
        self,
        group: str,
        *,
        retries_max: int = 16,
        retry_queues: int = 1,
        enabled: bool = True,
        broadcast_allowed: bool = True,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> tuple[GroupSettings, ...]:
        """Creates a group on every broker of a cluster, or of all. Nothing happens on brokers that have it
        already. Raises AlreadyExists if a broker has it with other settings."""
        return self._portal.run(
            self._work.create,
            group,
            retries_max=retries_max,
            retry_queues=retry_queues,
            enabled=enabled,
            broadcast_allowed=broadcast_allowed,
            ordered=ordered,
            attributes=attributes,
            cluster=cluster,
        )

    def change(
        self,
        group: str,
        *,
        retries_max: int | None = None,
        retry_queues: int | None = None,
        enabled: bool | None = None,
        broadcast_allowed: bool | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> tuple[GroupSettings, ...]:
        """Changes these settings on every broker that has the group; None removes an attribute. Raises
        NoSuchGroup."""
        return self._portal.run(
            self._work.change,
            group,
            retries_max=retries_max,
            retry_queues=retry_queues,
            enabled=enabled,
            broadcast_allowed=broadcast_allowed,
            ordered=ordered,
            attributes=attributes,
        )

    def list(self, *, cluster: str | None = None) -> Groups:
        """Lists all groups, of one cluster or of all; `kind` separates users' groups from the system's."""
        return self._portal.run(self._work.list, cluster=cluster)

    def figures(
        self,
        chosen: Callable[[GroupName], bool] | None = None,
        *,
        cluster: str | None = None,
        advance: Advance | None = None,
        one_by_one: bool = True,
    ) -> GroupOverview:
        """Returns how far the chosen groups are behind, and how many clients they have.

        A MetaQ broker answers for 1,000 groups at once. Others need some requests for each chosen group.
        Without `one_by_one`, those return only names and lags in messages: `missing` says so. `advance` is
        called with the number of groups that were read since the last call.
        """
        return self._portal.run(
            self._work.figures, chosen, cluster=cluster, advance=advance, one_by_one=one_by_one
        )

    def figures_by_name(self, brokers_of: Mapping[str, Collection[str]]) -> GroupOverview:
        """Returns the figures of single groups, each on the brokers that have it. The other groups of those
        brokers cost nothing. A group that is gone is left out."""
        return self._portal.run(self._work.figures_by_name, brokers_of)

    def show(self, group: str) -> Group:
        """Returns the settings, members and progress of a group. Raises NoSuchGroup."""
        return self._portal.run(self._work.show, group)

    def settings(self, group: str) -> tuple[GroupSettings, ...]:
        """Returns the settings of a group on each broker that has it and answers. Raises NoSuchGroup."""
        return self._portal.run(self._work.settings, group)

    def delete(self, group: str, *, keep_offsets: bool = False) -> tuple[str, ...]:
        """Deletes a group, with its offsets unless they are to be kept. Returns the brokers that had it.
        Raises NoSuchGroup."""
        return self._portal.run(self._work.delete, group, keep_offsets=keep_offsets)

    def limits(self, group: str) -> tuple[Limits, ...]:
        """Returns how much each broker gives to all consumers of a group together. Raises NoSuchGroup."""
        return self._portal.run(self._work.limits, group)

    def limit(
        self, group: str, *, messages_per_second: Rate = None, bytes_per_second: Rate = None
    ) -> tuple[Limits, ...]:
        """Limits how much each broker gives to all consumers of a group together; `"none"` removes a limit.
        Raises NoSuchGroup, and NotSupported for a broker that is not one of MetaQ's."""
        return self._portal.run(
            self._work.limit,
            group,
            messages_per_second=messages_per_second,
            bytes_per_second=bytes_per_second,
        )

    def members(self, group: str) -> Members:
        """Returns the clients of a group that are connected now; none is not an error."""
        return self._portal.run(self._work.members, group)

    def running(
        self, group: str, *, stacks: bool = False, client_ids: Collection[str] | None = None
    ) -> RunningMembers:
        """Asks the clients of a group which queues they consume and what they subscribe to; with `stacks`
        also what their threads do. With `client_ids` only these are asked, if they are connected. A client
        that does not answer has an `error`."""
        return self._portal.run(self._work.running, group, stacks=stacks, client_ids=client_ids)

    def progress(
        self, group: str, topic: str | None = None, *, times_of: Collection[str] | None = None
    ) -> Progress:
        """Returns how far a group is in each queue, of one topic or of all, in messages and in time. A group
        that has not committed anything has no queues. Each topic costs a request per broker for the times;
        with `times_of` only the times of these topics are asked for."""
        return self._portal.run(self._work.progress, group, topic, times_of=times_of)

    def reset(
        self,
        group: str,
        topic: str,
        to: Position,
        *,
        queues: Iterable[Queue] | None = None,
        dry_run: bool = False,
    ) -> Reset:
        """Moves a group to a position in a topic: in all its queues, or in those that are given.

        It works for groups that run and for groups that do not. With `dry_run` nothing is changed. Raises
        NoRoute, NoSuchGroup, UsageError for an offset that a queue does not hold, and NotSupported for
        brokers before 5.0.
        """
        return self._portal.run(self._work.reset, group, topic, to, queues=queues, dry_run=dry_run)

    def clone(self, source: str, target: str, topic: str, *, dry_run: bool = False) -> Reset:
        """Moves a group to where another one is in a topic. If the target does not exist, it is created with
        the settings of the source.

        Queues in which the source has committed nothing stay as they are. A place that the queue no longer
        holds becomes the first one that it holds. With `dry_run` nothing is changed. Raises NoRoute and
        NoSuchGroup.
        """
        return self._portal.run(self._work.clone, source, target, topic, dry_run=dry_run)

    def create_like(self, source: str, group: str) -> None:
        """Creates a group with the settings of another one, on the brokers that have that one. Nothing
        happens on brokers that have the group already. Raises NoSuchGroup."""
        self._portal.run(self._work.create_like, source, group)

    def apply(self, plan: Reset) -> Reset:
        """Moves a group exactly as a dry run has planned it. Raises Refused if a queue no longer holds the
        planned offset."""
        return self._portal.run(self._work.apply, plan)
