//! Pulls that wait for a filter function, in one line for each function.
//!
//! Only the pull waits in line. Its messages are gathered when a worker is free, so a slow function costs a few hundred
//! bytes for each pull that waits for it, and nobody else anything.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::net::peer::Peer;
use crate::notice::Notice;
use crate::pull::held_pulls::Held;
use crate::pull::held_table::{HeldTable, Ticket};

#[derive(Default)]
struct Lines {
    /// Each with its function.
    pulls: HeldTable<Arc<str>>,
    /// Oldest first.
    by_function: HashMap<Arc<str>, BTreeSet<Ticket>, RandomState>,
    is_closed: bool,
}

pub struct FunctionLines {
    lines: Mutex<Lines>,
    /// Becomes readable when a pull comes to an empty line.
    notice: Notice,
    count_max: usize,
    /// A pull that has waited this long is answered, and asks again.
    wait_max: Duration,
}

impl FunctionLines {
    pub fn new(count_max: usize, wait_max: Duration) -> std::io::Result<Self> {
        let notice = Notice::new()?;
        Ok(FunctionLines { lines: Mutex::default(), notice, count_max, wait_max })
    }

    pub fn fileno(&self) -> RawFd {
        self.notice.fileno()
    }

    /// Puts the pull at the end of the function's line; returns it if there is no room.
    pub fn add(&self, function: &str, held: Held) -> Result<(), Box<Held>> {
        let mut lines = self.lines.lock();
        if lines.is_closed || lines.pulls.is_full(&held.peer, self.count_max) {
            return Err(Box::new(held));
        }
        let function = match lines.by_function.get_key_value(function) {
            Some((function, _)) => Arc::clone(function),
            None => Arc::from(function),
        };
        let ticket = lines.pulls.insert(held, Instant::now() + self.wait_max, Arc::clone(&function));
        let line = lines.by_function.entry(function).or_default();
        line.insert(ticket);
        let first = line.len() == 1;
        drop(lines);
        if first {
            self.notice.set();
        }
        Ok(())
    }

    /// The functions that pulls wait for. A pull that comes to an empty line after this signals again.
    pub fn wanted(&self) -> Vec<String> {
        self.notice.clear();
        self.lines.lock().by_function.keys().map(ToString::to_string).collect()
    }

    /// Takes the first pull in line, and says whether others wait behind it.
    pub fn take(&self, function: &str) -> Option<(Held, bool)> {
        let mut lines = self.lines.lock();
        let first = *lines.by_function.get(function)?.first()?;
        let held = lines.remove(first)?;
        Some((held, lines.by_function.contains_key(function)))
    }

    /// Takes out some pulls whose time is over. Call it until there are none.
    pub fn take_expired(&self, now: Instant) -> Vec<Held> {
        self.take_listed(|lines| lines.pulls.overdue(now))
    }

    /// Takes out everything and has no room from now on.
    pub fn close(&self) -> Vec<Held> {
        self.take_listed(|lines| {
            lines.is_closed = true;
            lines.pulls.all()
        })
    }

    /// Forgets the pulls of a peer that has left.
    pub fn drop_peer(&self, peer: &Peer) {
        while !self.take_listed(|lines| lines.pulls.of_peer(peer)).is_empty() {}
    }

    /// Takes out the pulls that `list` names.
    fn take_listed(&self, list: impl FnOnce(&mut Lines) -> Vec<Ticket>) -> Vec<Held> {
        let lines = &mut *self.lines.lock();
        let listed = list(lines);
        listed.into_iter().filter_map(|ticket| lines.remove(ticket)).collect()
    }
}

impl Lines {
    /// An empty line is removed.
    fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        let (held, function) = self.pulls.remove(ticket)?;
        if let Some(line) = self.by_function.get_mut(&function) {
            line.remove(&ticket);
            if line.is_empty() {
                self.by_function.remove(&function);
            }
        }
        Some(held)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metaq_store::Filter;

    use super::*;
    use crate::pull::held_pulls::tests::{held as held_pull, peer};
    use crate::pull::held_table::tests::COMPARISONS;

    const WAIT_MAX: Duration = Duration::from_secs(5);

    fn held(peer: &Arc<Peer>, opaque: i32) -> Held {
        held_pull(peer, opaque, Filter::All)
    }

    fn taken(lines: &FunctionLines, function: &str) -> Option<(i32, bool)> {
        lines.take(function).map(|(held, more)| (held.pull.opaque, more))
    }

    #[test]
    fn each_function_has_its_line_and_all_share_the_room() {
        let lines = FunctionLines::new(5, WAIT_MAX).unwrap();
        let peer = peer(1);
        for (function, opaque) in [("a", 1), ("b", 2), ("a", 3)] {
            assert!(lines.add(function, held(&peer, opaque)).is_ok());
        }
        assert!(lines.add("b", held(&peer, 4)).is_err_and(|back| back.pull.opaque == 4));
        let mut wanted = lines.wanted();
        wanted.sort();
        assert_eq!(wanted, ["a", "b"]);
        assert_eq!(taken(&lines, "a"), Some((1, true)));
        assert_eq!(taken(&lines, "a"), Some((3, false)));
        assert_eq!(taken(&lines, "a"), None);
        assert_eq!(lines.wanted(), ["b"]);
        assert!(lines.add("b", held(&peer, 5)).is_ok(), "there is room again");
    }

    #[test]
    fn who_leaves_or_waited_too_long_is_taken_out() {
        let lines = FunctionLines::new(10, WAIT_MAX).unwrap();
        let (first, second) = (peer(1), peer(2));
        for (peer, opaque) in [(&first, 1), (&second, 2), (&first, 3)] {
            assert!(lines.add("a", held(peer, opaque)).is_ok());
        }
        lines.drop_peer(&first);
        assert!(lines.take_expired(Instant::now()).is_empty());
        let late: Vec<i32> =
            lines.take_expired(Instant::now() + WAIT_MAX).iter().map(|held| held.pull.opaque).collect();
        assert_eq!(late, [2]);
        assert!(lines.wanted().is_empty());
        assert!(lines.lines.lock().pulls.is_clean());
    }

    #[test]
    fn the_end_of_a_connection_costs_what_it_had_waiting() {
        let lines = FunctionLines::new(usize::MAX, WAIT_MAX).unwrap();
        let (many, one) = (peer(1), peer(2));
        for opaque in 0..3_000 {
            assert!(lines.add("a", held(&many, opaque)).is_ok());
        }
        assert!(lines.add("a", held(&one, -1)).is_ok());
        COMPARISONS.set(0);
        lines.drop_peer(&peer(3));
        lines.drop_peer(&one);
        assert!(COMPARISONS.get() < 100, "{} comparisons for 3,000 pulls", COMPARISONS.get());
        assert_eq!(lines.close().len(), 3_000);
    }
}
