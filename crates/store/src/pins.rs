//! Pins: who still needs the commit log, and from which physical offset on. Retention deletes nothing from a pin on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;

/// One physical offset per name. Timers have the first one; replicas, snapshots and readers can have more.
pub(crate) struct Pins {
    by_name: Mutex<BTreeMap<String, i64>>,
    lowest: AtomicI64,
}

impl Default for Pins {
    fn default() -> Self {
        Self { by_name: Mutex::default(), lowest: AtomicI64::new(i64::MAX) }
    }
}

impl Pins {
    /// Keeps everything from `physical_offset` on, in place of what `name` asked for before.
    pub(crate) fn pin(&self, name: &str, physical_offset: i64) {
        let mut by_name = self.by_name.lock();
        match by_name.get_mut(name) {
            Some(pinned) => *pinned = physical_offset,
            None => {
                by_name.insert(name.to_owned(), physical_offset);
            }
        }
        self.update(&by_name);
    }

    pub(crate) fn unpin(&self, name: &str) {
        let mut by_name = self.by_name.lock();
        by_name.remove(name);
        self.update(&by_name);
    }

    /// The first physical offset that anybody needs; `i64::MAX` if there are no pins.
    pub(crate) fn lowest(&self) -> i64 {
        self.lowest.load(Ordering::Acquire)
    }

    /// Deletes with the lowest pin as the limit. Nobody can set a lower one meanwhile, so a pin that was set in time
    /// holds.
    pub(crate) fn while_fixed<T>(&self, delete: impl FnOnce(i64) -> T) -> T {
        let _by_name = self.by_name.lock();
        delete(self.lowest())
    }

    fn update(&self, by_name: &BTreeMap<String, i64>) {
        self.lowest.store(by_name.values().copied().min().unwrap_or(i64::MAX), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_pin_counts() {
        let pins = Pins::default();
        assert_eq!(pins.lowest(), i64::MAX);
        pins.pin("timers", 300);
        pins.pin("replica b", 200);
        assert_eq!(pins.lowest(), 200);
        pins.pin("replica b", 400);
        assert_eq!(pins.lowest(), 300, "a pin moves");
        pins.unpin("timers");
        assert_eq!(pins.lowest(), 400);
        pins.unpin("timers");
        pins.unpin("replica b");
        assert_eq!(pins.lowest(), i64::MAX);
        assert_eq!(pins.while_fixed(|lowest| lowest), i64::MAX);
    }
}
