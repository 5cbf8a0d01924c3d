//! The memory that is kept for each group over all connections: its pulls that wait, and what the control plane
//! remembers of its clients and their subscriptions.
//!
//! Anybody may pull in the name of a group. So an address has a part of the group's memory in any case, whatever others
//! keep in the group's name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::transaction::shares::NameKey;

/// The part of a group's memory that an address has in any case.
const ADDRESS_PART: usize = 8;

#[derive(Default)]
struct Accounts {
    bytes: HashMap<Arc<str>, usize, RandomState>,
    /// The pulls that wait, by group and address.
    of_address: HashMap<(NameKey, NameKey), usize, RandomState>,
    /// The most that one group has used.
    peak: usize,
}

/// One account for each group that uses memory.
pub struct GroupMemory {
    accounts: Mutex<Accounts>,
    bytes_max: usize,
}

impl GroupMemory {
    pub fn new(bytes_max: usize) -> Self {
        GroupMemory { accounts: Mutex::default(), bytes_max }
    }

    /// Counts bytes that are kept for a pull of a group from this address, or says why they may not be kept.
    pub fn keep(&self, group: &Arc<str>, address: NameKey, bytes: usize) -> Result<(), String> {
        let mut accounts = self.accounts.lock();
        let used = accounts.bytes.get(group).copied().unwrap_or(0);
        let member = (NameKey::of(group.as_bytes()), address);
        let own = accounts.of_address.get(&member).copied().unwrap_or(0);
        let is_full = |used: usize, limit: usize| used.saturating_add(bytes) > limit;
        if is_full(used, self.bytes_max) && is_full(own, self.bytes_max / ADDRESS_PART) {
            return Err(format!(
                "[OVERLOAD] the broker keeps {used} bytes for group[{group}], and the limit is {} (group_memory_bytes_max); use fewer consumers or shorter filters",
                self.bytes_max
            ));
        }
        accounts.add(group, bytes);
        *accounts.of_address.entry(member).or_default() += bytes;
        Ok(())
    }

    /// Takes bytes out again that [`GroupMemory::keep`] has counted.
    pub fn give_back(&self, group: &str, address: NameKey, bytes: usize) {
        let mut accounts = self.accounts.lock();
        accounts.remove(group, bytes);
        if let Entry::Occupied(mut own) = accounts.of_address.entry((NameKey::of(group.as_bytes()), address))
        {
            *own.get_mut() = own.get().saturating_sub(bytes);
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    /// Counts bytes that were granted elsewhere.
    pub fn add(&self, group: &str, bytes: usize) {
        self.accounts.lock().add(&Arc::from(group), bytes);
    }

    pub fn remove(&self, group: &str, bytes: usize) {
        self.accounts.lock().remove(group, bytes);
    }

    /// The bytes of the group that uses most now, and the most that one has used.
    pub fn largest(&self) -> (usize, usize) {
        let accounts = self.accounts.lock();
        (accounts.bytes.values().copied().max().unwrap_or(0), accounts.peak)
    }
}

impl Accounts {
    fn add(&mut self, group: &Arc<str>, bytes: usize) {
        let used = match self.bytes.get_mut(group) {
            Some(used) => used,
            None => self.bytes.entry(Arc::clone(group)).or_default(),
        };
        *used += bytes;
        self.peak = self.peak.max(*used);
    }

    fn remove(&mut self, group: &str, bytes: usize) {
        if let Some(used) = self.bytes.get_mut(group) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.bytes.remove(group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_account_and_is_refused_beyond_its_limit() {
        let groups = GroupMemory::new(1_000);
        let (one, other) = (Arc::from("one"), Arc::from("other"));
        let address = NameKey::numbered(1);
        groups.add("one", 300);
        assert_eq!(groups.keep(&one, address, 700), Ok(()));
        assert!(groups.keep(&one, address, 1).is_err_and(|remark| {
            remark.contains("1000 bytes for group[one]") && remark.contains("(group_memory_bytes_max)")
        }));
        assert_eq!(groups.keep(&other, address, 400), Ok(()), "another group has its own");
        assert_eq!(groups.largest(), (1_000, 1_000));
        groups.give_back("one", address, 700);
        groups.give_back("other", address, 400);
        assert_eq!(groups.largest(), (300, 1_000));
        groups.remove("one", 300);
        let accounts = groups.accounts.lock();
        assert!(accounts.bytes.is_empty() && accounts.of_address.is_empty());
    }

    #[test]
    fn nobody_uses_up_the_memory_of_a_group_for_its_members_elsewhere() {
        let (groups, group) = (GroupMemory::new(800), Arc::from("g"));
        let (stranger, member) = (NameKey::numbered(1), NameKey::numbered(2));
        assert_eq!(groups.keep(&group, stranger, 800), Ok(()));
        assert!(groups.keep(&group, stranger, 1).is_err());
        assert_eq!(groups.keep(&group, member, 100), Ok(()), "an eighth");
        assert!(groups.keep(&group, member, 1).is_err());
        groups.give_back("g", stranger, 200);
        assert_eq!(groups.keep(&group, member, 50), Ok(()), "the group has room again");
    }
}
