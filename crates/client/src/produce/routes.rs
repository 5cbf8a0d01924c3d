//! Chooses the queue of a batch from what Python handed in: the routes of topics, and the brokers to avoid.
//!
//! `metaq.client.producer.queue_selection` is the authority: it decides which brokers are avoided and for how long, and
//! applies the same rule to single sends. The rule is applied here a second time because no Python runs per batch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::RandomState;
use metaq_wire::tag_code;
use parking_lot::{Mutex, RwLock};

use crate::produce::batch::BrokerQueue;

/// The writable queues of one topic.
#[derive(Debug, Clone, Default)]
pub struct Route {
    /// In the order that all clients share.
    pub queues: Vec<BrokerQueue>,
    /// Broker → address of its master.
    pub addresses: HashMap<Arc<str>, Arc<str>>,
    /// The topic does not exist yet; its first message creates it.
    pub is_template: bool,
}

impl Route {
    /// Takes the broker, the address of its master and the number of each queue, in the order that all clients share.
    pub fn new(queues: impl IntoIterator<Item = (String, String, i32)>, is_template: bool) -> Route {
        let mut route = Route { is_template, ..Route::default() };
        for (broker, address, queue_id) in queues {
            let broker: Arc<str> = match route.addresses.get_key_value(broker.as_str()) {
                Some((known, _)) => Arc::clone(known),
                None => Arc::from(broker),
            };
            route.addresses.entry(Arc::clone(&broker)).or_insert_with(|| Arc::from(address));
            route.queues.push(BrokerQueue { broker, queue_id });
        }
        route
    }

    /// Returns the same queue for the same key: the one that Java's SelectMessageQueueByHash chooses.
    ///
    /// The first message creates a topic on its own broker alone. So all keys of a topic that does not exist yet share
    /// one broker, and each key keeps its queue when the topic exists.
    pub fn by_key(&self, topic: &str, key: &str) -> Option<&BrokerQueue> {
        let queues = if self.is_template { self.of_one_broker(topic) } else { &*self.queues };
        queues.get(remainder(key, queues.len())?)
    }

    /// The queues of one broker, the same for the same topic.
    fn of_one_broker(&self, topic: &str) -> &[BrokerQueue] {
        let brokers: Vec<&[BrokerQueue]> = self.queues.chunk_by(|a, b| a.broker == b.broker).collect();
        let chosen = remainder(topic, brokers.len()).and_then(|number| brokers.get(number).copied());
        chosen.unwrap_or_default()
    }

    /// How many queues a broker has. The number matters when the message creates the topic.
    fn queues_of(&self, broker: &str) -> usize {
        self.queues.iter().filter(|queue| *queue.broker == *broker).count()
    }
}

/// The hash of a text as a number below `count`; `None` if that is 0.
fn remainder(text: &str, count: usize) -> Option<usize> {
    let number = tag_code(text).unsigned_abs().checked_rem(u64::try_from(count).ok()?)?;
    usize::try_from(number).ok()
}

/// The queue and the broker address that a batch is sent to.
#[derive(Debug, Clone)]
pub struct Target {
    pub queue: BrokerQueue,
    pub address: Arc<str>,
    pub queues_at_broker: usize,
    pub is_template: bool,
}

#[derive(Default)]
pub struct Routes {
    topics: RwLock<HashMap<Arc<str>, Arc<Route>, RandomState>>,
    /// Broker → until when it is avoided.
    faults: Mutex<HashMap<Arc<str>, Instant>>,
}

impl Routes {
    pub fn put(&self, topic: &str, route: Route) {
        self.topics.write().insert(Arc::from(topic), Arc::new(route));
    }

    pub fn get(&self, topic: &str) -> Option<Arc<Route>> {
        self.topics.read().get(topic).cloned()
    }

    /// Replaces the list of brokers that failed recently.
    pub fn set_faults(&self, faults: impl IntoIterator<Item = (Arc<str>, Instant)>) {
        *self.faults.lock() = faults.into_iter().collect();
    }

    /// Forgets the fault of a broker that stored something; `true` if it had one.
    pub fn clear_fault(&self, broker: &str) -> bool {
        self.faults.lock().remove(broker).is_some()
    }

    /// Targets a given queue, if it is writable.
    pub fn given(&self, topic: &str, queue: &BrokerQueue) -> Option<Target> {
        let route = self.get(topic)?;
        route.queues.contains(queue).then(|| target(&route, queue))?
    }

    /// Targets the queue whose turn it is. Brokers that are avoided are skipped while others are left.
    pub fn any(&self, topic: &str, turn: usize, now: Instant) -> Option<Target> {
        let route = self.get(topic)?;
        let faults = self.faults.lock();
        let avoided = |queue: &&BrokerQueue| faults.get(&queue.broker).is_some_and(|until| *until > now);
        let left: Vec<&BrokerQueue> = match faults.is_empty() {
            true => Vec::new(),
            false => route.queues.iter().filter(|queue| !avoided(queue)).collect(),
        };
        let queue = match left.len() {
            0 => route.queues.get(turn.checked_rem(route.queues.len())?)?,
            count => *left.get(turn % count)?,
        };
        target(&route, queue)
    }
}

fn target(route: &Route, queue: &BrokerQueue) -> Option<Target> {
    Some(Target {
        address: Arc::clone(route.addresses.get(&queue.broker)?),
        queues_at_broker: route.queues_of(&queue.broker),
        queue: queue.clone(),
        is_template: route.is_template,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn routes(brokers: &[&str]) -> Routes {
        let queues = brokers
            .iter()
            .flat_map(|broker| (0..2).map(|queue_id| BrokerQueue { broker: Arc::from(*broker), queue_id }));
        let addresses = brokers.iter().map(|broker| (Arc::from(*broker), Arc::from(format!("{broker}:1"))));
        let routes = Routes::default();
        let route = Route { queues: queues.collect(), addresses: addresses.collect(), is_template: false };
        routes.put("t", route);
        routes
    }

    fn brokers(routes: &Routes) -> Vec<String> {
        let now = Instant::now();
        (0..4).map(|turn| routes.any("t", turn, now).unwrap().queue.broker.to_string()).collect()
    }

    #[test]
    fn queues_take_turns_and_avoided_brokers_are_skipped_while_others_are_left() {
        let routes = routes(&["a", "b"]);
        assert_eq!(brokers(&routes), ["a", "a", "b", "b"]);
        let later = Instant::now() + Duration::from_secs(60);
        routes.set_faults([(Arc::from("a"), later)]);
        assert_eq!(brokers(&routes), ["b", "b", "b", "b"]);
        routes.set_faults([(Arc::from("a"), later), (Arc::from("b"), later)]);
        assert_eq!(brokers(&routes), ["a", "a", "b", "b"]);
        assert!(routes.clear_fault("b") && !routes.clear_fault("b"));
        assert_eq!(brokers(&routes), ["b", "b", "b", "b"]);
        routes.set_faults([(Arc::from("a"), Instant::now())]);
        assert_eq!(brokers(&routes), ["a", "a", "b", "b"]);
    }

    #[test]
    fn only_a_writable_queue_is_targeted() {
        let routes = routes(&["a"]);
        let queue = |queue_id| BrokerQueue { broker: "a".into(), queue_id };
        let target = routes.given("t", &queue(1)).unwrap();
        assert_eq!((&*target.address, target.queues_at_broker), ("a:1", 2));
        assert!(routes.given("t", &queue(2)).is_none());
        assert!(routes.given("u", &queue(0)).is_none());
        routes.put("none", Route::default());
        assert!(routes.any("none", 3, Instant::now()).is_none());
        assert!(Route::default().by_key("t", "k").is_none());
        // The hash of this text is i32::MIN, whose absolute value does not fit into 32 bits.
        let queues = routes.get("t").unwrap();
        assert_eq!(queues.by_key("t", "polygenelubricants").unwrap().queue_id, 0);
    }

    #[test]
    fn keys_of_a_new_topic_share_a_broker_and_keep_their_queues_when_it_exists() {
        let template = Route { is_template: true, ..Route::clone(&routes(&["a", "b"]).get("t").unwrap()) };
        let mut used = Vec::new();
        for topic in ["orders", "parcels", "letters", "returns"] {
            let broker = &template.by_key(topic, "0").unwrap().broker;
            let created = Route::clone(&routes(&[broker]).get("t").unwrap());
            for key in (0..100).map(|number| number.to_string()) {
                assert_eq!(template.by_key(topic, &key), created.by_key(topic, &key));
            }
            used.push(broker.to_string());
        }
        used.sort();
        used.dedup();
        assert_eq!(used, ["a", "b"]);
    }
}
