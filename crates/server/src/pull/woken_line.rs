//! Held pulls that messages have woken and left to the plane's thread. Addresses take turns, so the pulls of one that holds
//! very many do not keep those of others waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::pull::held_table::{TAKEN_AT_ONCE, Ticket};
use crate::transaction::shares::NameKey;

#[derive(Default)]
pub struct WokenLine {
    of_network: BTreeMap<NameKey, BTreeSet<Ticket>>,
    /// The address that had the last turn.
    last: NameKey,
}

impl WokenLine {
    pub fn is_empty(&self) -> bool {
        self.of_network.is_empty()
    }

    pub fn add(&mut self, network: NameKey, ticket: Ticket) {
        self.of_network.entry(network).or_default().insert(ticket);
    }

    /// Whether the pull was in the line.
    pub fn remove(&mut self, network: NameKey, ticket: Ticket) -> bool {
        let Some(tickets) = self.of_network.get_mut(&network) else { return false };
        let was_there = tickets.remove(&ticket);
        if tickets.is_empty() {
            self.of_network.remove(&network);
        }
        was_there
    }

    /// Some pulls of the address whose turn it is, oldest first.
    pub fn next_turn(&mut self) -> Vec<Ticket> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.of_network.range(behind).next().or_else(|| self.of_network.first_key_value());
        let Some((network, tickets)) = next else { return Vec::new() };
        self.last = *network;
        tickets.iter().take(TAKEN_AT_ONCE).copied().collect()
    }
}
