//! The live members of a group by connection, each with its own subscriptions. A pull is filtered by the subscription of the
//! member that sends it, whatever other members of its group have announced.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::policy::Subscription;

/// The part of one member's heartbeat that decides what its pulls get.
#[derive(Debug)]
pub struct Member {
    pub broadcasting: bool,
    /// Sorted by topic.
    subscriptions: Box<[Subscription]>,
}

impl Member {
    pub fn new(broadcasting: bool, mut subscriptions: Vec<Subscription>) -> Self {
        subscriptions.sort_by(|one, other| one.topic.cmp(&other.topic));
        Member { broadcasting, subscriptions: subscriptions.into() }
    }

    pub(super) fn subscription(&self, topic: &str) -> Option<&Subscription> {
        let found = self.subscriptions.binary_search_by(|entry| entry.topic.as_str().cmp(topic)).ok()?;
        self.subscriptions.get(found)
    }
}

pub(super) type ByConnection = HashMap<u64, Member, RandomState>;

#[derive(Debug, Default)]
pub struct Members {
    by_connection: RwLock<ByConnection>,
}

impl Members {
    pub fn put(&self, connection: u64, member: Member) {
        self.by_connection.write().insert(connection, member);
    }

    pub fn remove(&self, connection: u64) {
        self.by_connection.write().remove(&connection);
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, ByConnection> {
        self.by_connection.read()
    }
}
