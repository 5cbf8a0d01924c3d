"""The decisions of the master switch, as pure functions from a view to actions.

`following.py` decides for a replica, `candidate.py` for a node that wants to become master, `master.py` for a
master. `membership.py` holds the questions that several of them ask. `promises.py` says which records a node
believes, `electorate.py` who must agree to an election and proves why. `fixed.py` decides for groups without
a register, `forced.py` builds the record for an operator who accepts losses, `incarnation.py` decides at the
start whether a store is still the one that its group knows.

Two rules carry the rest. A record is acknowledged when every member of the in-sync set has flushed it. Only a
member of the in-sync set, with the same incarnation, can be elected, and it stops following before it asks.
"""

from __future__ import annotations

from dataclasses import replace

from metaq.ha.actions import Action, NoteDamage, Reopen, StepDown, Swap, Wait
from metaq.ha.decisions.candidate import decide_candidate
from metaq.ha.decisions.following import decide_following
from metaq.ha.decisions.master import decide_master, is_deposed
from metaq.ha.decisions.membership import must_reopen, should_note_damage
from metaq.ha.decisions.promises import due_promise, must_ignore
from metaq.ha.view import Role, View

_DECIDE = {
    Role.REPLICA: decide_following,
    Role.CANDIDATE: decide_candidate,
    Role.MASTER: decide_master,
}


def decide(view: View) -> list[Action]:
    """Returns what the node should do now, in order."""
    if must_ignore(view):
        return [Wait(view.now + view.settings.urgent_poll_interval_s, "the register was read too early")]
    # To stop serving is always safe, and a disk that hangs must not delay it.
    if (promise := due_promise(view)) is not None and not is_deposed(view):
        return [promise]
    if must_reopen(view.own):
        return [Reopen()]
    actions = _DECIDE[view.own.role](view)
    if should_note_damage(view.own) and not any(isinstance(action, StepDown) for action in actions):
        return [NoteDamage(view.own.damaged_at)]
    return [_in_readable_form(view, action) for action in actions]


def _in_readable_form(view: View, action: Action) -> Action:
    """During a rolling upgrade, older nodes must be able to read the record that this node writes."""
    register = view.register
    if not isinstance(action, Swap) or (register.record is not None and register.record.version > 0):
        return action
    if register.has_older_nodes or not action.record.members <= register.readers | {view.own.member}:
        return replace(action, record=action.record.for_older())
    return action
