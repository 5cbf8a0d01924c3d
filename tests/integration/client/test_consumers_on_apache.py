"""The contract of consumers on Apache's broker: all scenarios that do not move the clock."""

from __future__ import annotations

import pytest

import tests.integration.client.test_consumer_contract as contract
import tests.integration.client.test_consumer_modes as modes
from tests.integration.client.conftest import Served


@pytest.fixture(scope="module")
def served(apache_served: Served) -> Served:
    return apache_served


test_pull = contract.test_pull_assigns_seeks_polls_and_commits
test_a_handler = contract.test_a_handler_gets_every_message_once_and_its_group_goes_on_there
test_rejects = contract.test_rejected_messages_are_dead_letters_in_a_loop_and_in_a_handler
test_order = contract.test_in_order_a_failure_holds_its_queue_and_only_that
test_members = contract.test_members_share_the_queues_and_take_over
test_close = contract.test_close_waits_for_what_is_in_hand_but_not_for_ever
test_broadcast = modes.test_broadcast_reaches_everybody_and_goes_on_from_its_file
test_filters = modes.test_batches_and_filters
test_a_slow_handler = modes.test_a_slow_handler_holds_up_no_other_call
# modes.test_rewind_and_what_a_broker_asks also holds there, but takes 15 s, because the broker holds a pull
# for that long after a reset.
