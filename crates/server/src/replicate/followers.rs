//! Which replicas follow a master, and until when that is known.
//!
//! Records wait for their acknowledgements anyway. A committed offset does not: it is answered at once and sent to the
//! replicas within a second. So a master answers commits with success only while its replicas are known to follow. A
//! replica stops following before it becomes master, so none can have become master long before.

use std::collections::BTreeMap;

/// When each node was last heard, in milliseconds of CLOCK_BOOTTIME.
pub(super) struct Followers {
    began_ms: i64,
    followed_for_ms: i64,
    settle_ms: i64,
    heard: BTreeMap<u32, Heard>,
}

struct Heard {
    at_ms: i64,
    /// When it was first heard after a silence that was too long.
    since_ms: i64,
}

impl Followers {
    /// `settle_ms` is longer than the bytes that wait in a socket take to be read.
    pub fn new(now_ms: i64, followed_for_ms: i64, settle_ms: i64) -> Self {
        Followers { began_ms: now_ms, followed_for_ms, settle_ms, heard: BTreeMap::new() }
    }

    pub fn heard(&mut self, node_id: u32, now_ms: i64) {
        let (began_ms, limit_ms) = (self.began_ms, self.followed_for_ms);
        let heard = self.heard.entry(node_id).or_insert(Heard { at_ms: began_ms, since_ms: began_ms });
        if now_ms - heard.at_ms >= limit_ms {
            heard.since_ms = now_ms;
        }
        heard.at_ms = now_ms;
    }

    /// Until when all these nodes are known to follow; None if there are none. The start of a master counts as a sign of
    /// all: it was elected just now.
    ///
    /// A master that hung finds old acknowledgements in its sockets when it goes on, from nodes that have another master
    /// by now. So a node that was silent for too long counts again once it was heard for a while.
    pub fn until_ms(&self, required: &[u32]) -> Option<i64> {
        let until = |node_id: &u32| match self.heard.get(node_id) {
            None => self.began_ms + self.followed_for_ms,
            Some(heard)
                if heard.since_ms > self.began_ms && heard.at_ms - heard.since_ms < self.settle_ms =>
            {
                0
            }
            Some(heard) => heard.at_ms + self.followed_for_ms,
        };
        required.iter().map(until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_silent_of_those_who_must_follow_counts() {
        let mut followers = Followers::new(1_000, 2_000, 400);
        assert_eq!(followers.until_ms(&[]), None);
        assert_eq!(followers.until_ms(&[1, 2]), Some(3_000), "the start counts as a sign of all");
        followers.heard(1, 2_500);
        assert_eq!((followers.until_ms(&[1]), followers.until_ms(&[1, 2])), (Some(4_500), Some(3_000)));
        followers.heard(2, 2_800);
        assert_eq!(followers.until_ms(&[1, 2]), Some(4_500));
        assert_eq!(followers.until_ms(&[2, 3]), Some(3_000), "nobody has heard of the third");
    }

    #[test]
    fn old_acknowledgements_that_are_read_after_a_pause_prove_nothing() {
        let mut followers = Followers::new(0, 2_000, 400);
        followers.heard(1, 1_000);
        for now_ms in [9_000, 9_001, 9_399] {
            followers.heard(1, now_ms);
            assert_eq!(followers.until_ms(&[1]), Some(0), "{now_ms}");
        }
        followers.heard(1, 9_400);
        assert_eq!(followers.until_ms(&[1]), Some(11_400), "it still sends");
        followers.heard(2, 9_500);
        assert_eq!(followers.until_ms(&[2]), Some(0), "the first sign comes late");
        followers.heard(2, 9_900);
        assert_eq!(followers.until_ms(&[2]), Some(11_900));
    }
}
