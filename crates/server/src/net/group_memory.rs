//! The memory that is kept for each group over all connections: its pulls that wait, and what the control plane
//! remembers of its clients and their subscriptions.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

#[derive(Default)]
struct Accounts {
    bytes: HashMap<Arc<str>, usize, RandomState>,
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

    /// Counts bytes that are kept for a group, or says why they may not be kept.
    pub fn keep(&self, group: &Arc<str>, bytes: usize) -> Result<(), String> {
        let mut accounts = self.accounts.lock();
        let used = accounts.bytes.get(group).copied().unwrap_or(0);
        if used.saturating_add(bytes) > self.bytes_max {
            return Err(format!(
                "[OVERLOAD] the broker keeps {used} bytes for group[{group}], and the limit is {} (group_memory_bytes_max); use fewer consumers or shorter filters",
                self.bytes_max
            ));
        }
        accounts.add(group, bytes);
        Ok(())
    }

    /// Counts bytes that were granted elsewhere.
    pub fn add(&self, group: &str, bytes: usize) {
        self.accounts.lock().add(&Arc::from(group), bytes);
    }

    pub fn remove(&self, group: &str, bytes: usize) {
        let mut accounts = self.accounts.lock();
        if let Some(used) = accounts.bytes.get_mut(group) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                accounts.bytes.remove(group);
            }
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_account_and_is_refused_beyond_its_limit() {
        let groups = GroupMemory::new(1_000);
        let (one, other) = (Arc::from("one"), Arc::from("other"));
        groups.add("one", 300);
        assert_eq!(groups.keep(&one, 700), Ok(()));
        assert!(groups.keep(&one, 1).is_err_and(|remark| {
            remark.contains("1000 bytes for group[one]") && remark.contains("(group_memory_bytes_max)")
        }));
        assert_eq!(groups.keep(&other, 400), Ok(()), "another group has its own");
        assert_eq!(groups.largest(), (1_000, 1_000));
        groups.remove("one", 700);
        groups.remove("other", 400);
        assert_eq!(groups.largest(), (300, 1_000));
        groups.remove("one", 300);
        assert!(groups.accounts.lock().bytes.is_empty());
    }
}
