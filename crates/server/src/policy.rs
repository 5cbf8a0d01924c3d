//! Topics, groups and permissions as Python decided them: one immutable snapshot, read without locks.

use std::sync::Arc;

use arc_swap::ArcSwap;
use metaq_store::Filter;
use parking_lot::Mutex;

use crate::by_name::{ByName, Named};
use crate::limits::rate::Limit;
use crate::metrics::traffic::{GroupTraffic, Pairs, TopicTraffic};
use crate::net::route::Refusal;
use crate::pull::members::{Member, Members};

pub const PERMISSION_READ: u8 = 4;
pub const PERMISSION_WRITE: u8 = 2;

/// The rules of one topic.
#[derive(Debug, Clone)]
pub struct Topic {
    pub name: String,
    pub read_queues: i32,
    pub write_queues: i32,
    pub permission: u8,
    /// False for system topics that no client may send to.
    pub client_writable: bool,
    /// False for topics that only the broker itself reads.
    pub client_readable: bool,
    pub send_limit: Option<Arc<Limit>>,
    /// The broker's own, or a tool's: people look at it rarely.
    pub is_system: bool,
    pub traffic: Arc<TopicTraffic>,
}

/// A standing subscription to one topic.
#[derive(Debug, Clone)]
pub struct Subscription {
    pub topic: String,
    pub version: i64,
    pub expression_type: String,
    pub filter: Filter,
    /// Why this subscription cannot be served.
    pub refusal: Option<Refusal>,
}

/// The rules of one consumer group.
#[derive(Debug, Clone)]
pub struct Group {
    pub name: String,
    /// False for groups whose offsets the broker itself relies on.
    pub client_usable: bool,
    pub consume_enabled: bool,
    pub broadcast_enabled: bool,
    pub broadcasting: bool,
    /// The broker of the group that consumers should read from; 0 is the master.
    pub broker_id: i64,
    /// The same for consumers that are far behind.
    pub slow_broker_id: i64,
    /// Tries after which a message sent to the group's retry topic goes to its dead letters.
    pub retry_times_max: i32,
    /// Topics that the group may not read for now.
    pub forbidden_topics: Vec<String>,
    /// For pulls of connections that are not members yet.
    pub subscriptions: Vec<Subscription>,
    /// The same for members. It stays when the rules of the group change.
    pub members: Arc<Members>,
    pub consume_limit: Option<Arc<Limit>>,
    pub is_system: bool,
    pub traffic: Arc<GroupTraffic>,
}

impl Named for Topic {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for Group {
    fn name(&self) -> &str {
        &self.name
    }
}

/// One version of the policy; it never changes once it is published.
#[derive(Clone)]
pub struct Snapshot {
    topics: ByName<Topic>,
    groups: ByName<Group>,
    pub permission: u8,
    limited_groups: usize,
}

impl Snapshot {
    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.topics.get(name)
    }

    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.get(name)
    }

    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.iter().map(Arc::as_ref)
    }

    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(Arc::as_ref)
    }

    /// If false, pulls need not look for their group's limit.
    pub fn has_limited_groups(&self) -> bool {
        self.limited_groups > 0
    }
}

/// The published snapshot. A change replaces it, one change at a time; the new snapshot shares with the old one all that did
/// not change.
pub struct Policy {
    current: ArcSwap<Snapshot>,
    change: Mutex<()>,
    pairs: Arc<Pairs>,
}

impl Policy {
    /// `pairs_max` limits the pairs of a topic and a group that are counted for the metrics, `queues_max` the queues of
    /// which they keep how far they were handed out.
    pub fn new(pairs_max: usize, queues_max: usize) -> Self {
        let empty = Snapshot {
            topics: ByName::default(),
            groups: ByName::default(),
            permission: PERMISSION_READ | PERMISSION_WRITE,
            limited_groups: 0,
        };
        Policy {
            current: ArcSwap::from_pointee(empty),
            change: Mutex::new(()),
            pairs: Arc::new(Pairs::new(pairs_max, queues_max)),
        }
    }

    /// Queues of which the metrics know how far they were handed out to a group.
    pub fn queues_counted(&self) -> usize {
        self.pairs.queues_kept()
    }

    pub fn read(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.current.load()
    }

    pub fn put_topics(&self, topics: Vec<Topic>) {
        self.replace(|next| {
            for mut topic in topics {
                let old = next.topics.get(&topic.name);
                topic.send_limit =
                    Limit::succeed(topic.send_limit, old.and_then(|old| old.send_limit.as_ref()));
                topic.traffic = old.map_or_else(Arc::default, |old| Arc::clone(&old.traffic));
                next.topics.insert(topic);
            }
        });
    }

    pub fn remove_topic(&self, name: &str) {
        self.replace(|next| next.topics.remove(name));
    }

    pub fn put_groups(&self, groups: Vec<Group>) {
        self.replace(|next| {
            for mut group in groups {
                let known = next.groups.get(&group.name);
                group.traffic = known.map_or_else(
                    || Arc::new(GroupTraffic::new(&self.pairs)),
                    |known| Arc::clone(&known.traffic),
                );
                group.members = known.map_or_else(Arc::default, |known| Arc::clone(&known.members));
                let old = known.and_then(|known| known.consume_limit.as_ref());
                next.limited_groups -= usize::from(old.is_some());
                group.consume_limit = Limit::succeed(group.consume_limit, old);
                next.limited_groups += usize::from(group.consume_limit.is_some());
                next.groups.insert(group);
            }
        });
    }

    /// Gives a member of a group its own subscriptions. A group that is not here has no members.
    pub fn put_member(&self, group: &str, connection: u64, member: Member) {
        if let Some(group) = self.read().group(group) {
            group.members.put(connection, member);
        }
    }

    pub fn remove_member(&self, group: &str, connection: u64) {
        if let Some(group) = self.read().group(group) {
            group.members.remove(connection);
        }
    }

    pub fn remove_group(&self, name: &str) {
        self.replace(|next| {
            let limited = next.groups.get(name).is_some_and(|old| old.consume_limit.is_some());
            next.limited_groups -= usize::from(limited);
            next.groups.remove(name);
        });
    }

    pub fn set_permission(&self, permission: u8) {
        self.replace(|next| next.permission = permission);
    }

    fn replace(&self, change: impl FnOnce(&mut Snapshot)) {
        let _one_at_a_time = self.change.lock();
        let mut next = Snapshot::clone(&self.current.load());
        change(&mut next);
        self.current.store(Arc::new(next));
    }
}
