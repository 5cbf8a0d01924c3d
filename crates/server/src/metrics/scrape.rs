//! The page of metrics that grow with the number of topics and groups.

use std::sync::Arc;

use crate::broker::Broker;
use crate::metrics::latency::{Latencies, TIME_BOUNDS};
use crate::metrics::text::{Page, labels};
use crate::metrics::traffic::{Delivered, MessageType, ReceivedSums, SIZE_BOUNDS};
use crate::policy::{Snapshot, Topic};
use crate::send::rewrite::{DEAD_LETTER_PREFIX, RETRY_PREFIX};
use crate::timer::delivery::Timers;

/// Looks for the time of a message, in one scrape: each may read from the disk. The series that would need more are left
/// out, because nobody knows their values.
const TIME_LOOKS_MAX: usize = 20_000;

/// Messages that wait for a moment are counted by how soon they are due, in seconds. An Apache broker counts those of the
/// next 5 seconds apart.
const DUE_BOUNDS_S: [i64; 7] = [60, 300, 900, 3_600, 14_400, 28_800, 86_400];

/// Which series are wanted, and what all of them are labelled with.
pub struct Scrape {
    pub common: Vec<(String, String)>,
    pub series_max: usize,
    /// Without them only the times of requests are shown.
    pub by_topic: bool,
}

/// A page, and how many series found no room on it.
pub struct Scraped {
    pub text: String,
    pub dropped: u64,
}

impl Broker {
    /// Writes the metrics of all topics, groups and requests. Reads everything once and is called rarely.
    pub fn scrape(&self, scrape: &Scrape) -> Scraped {
        let mut page = Page::new(&scrape.common, scrape.series_max);
        write_requests(&mut page, &self.latencies);
        write_timers(&mut page, &self.timers);
        if scrape.by_topic {
            let policy = self.policy.read();
            write_received(&mut page, &policy);
            write_transactions(&mut page, &policy);
            self.write_half_messages(&mut page, &policy);
            write_delivered(&mut page, &policy);
            self.write_lag(&mut page, &policy);
        }
        Scraped { dropped: page.dropped, text: page.finish() }
    }

    /// The queues in which a group was given messages that it has not committed: the topic, the queue, the offset after
    /// the last one, and the committed offset if it has one. Looks at no more than `queues_max` queues.
    pub fn unsettled(&self, group: &str, queues_max: usize) -> Vec<(String, i32, i64, Option<i64>)> {
        let policy = self.policy.read();
        let mut found = Vec::new();
        let mut left = queues_max;
        for delivered in policy.group(group).map(|group| group.traffic.all()).into_iter().flatten() {
            let reached = delivered.reached_queues(left);
            left -= reached.len();
            if reached.is_empty() || policy.topic(&delivered.topic).is_none() {
                continue;
            }
            let committed = self.offsets.of(group, &delivered.topic);
            found.extend(reached.into_iter().filter_map(|(queue_id, next)| {
                let committed = committed.get(&queue_id).copied();
                // A topic that was deleted and created again is shorter than before.
                let end = self.store.max_offset(&delivered.topic, queue_id);
                let next = next.min(end);
                (next > committed.unwrap_or(0))
                    .then(|| (delivered.topic.to_string(), queue_id, next, committed))
            }));
        }
        found
    }

    /// Half messages of open transactions; topics without any have no series.
    fn write_half_messages(&self, page: &mut Page, policy: &Snapshot) {
        let open = self.transactions.open_of_topics(policy.topics().map(|topic| topic.name.as_str()));
        page.family("rocketmq_half_messages", "gauge");
        for (topic, count) in open {
            if page.has_room(1) {
                page.sample("rocketmq_half_messages", &labels(&[("topic", topic)]), count);
            }
        }
    }

    fn write_lag(&self, page: &mut Page, policy: &Snapshot) {
        let mut looks_left = TIME_LOOKS_MAX;
        let mut lags: Vec<Lag> = Vec::new();
        for key in self.offsets.keys() {
            let Some((topic, group)) = key.split_once('@') else {
                continue;
            };
            if topic.strip_prefix(DEAD_LETTER_PREFIX) == Some(group) {
                // This offset says how far the group's dead letters were sent again. Nobody is behind with them.
                continue;
            }
            if let (Some(rules), Some(group)) = (policy.topic(topic), policy.group(group)) {
                let traffic = group.traffic.find(topic);
                let is_system = rules.is_system || group.is_system;
                let labels = pair_labels(&group.name, topic, is_system, true);
                if !page.has_room(Lag::SERIES) {
                    continue;
                }
                lags.push(self.lag(&group.name, rules, traffic.as_ref(), labels, &mut looks_left));
            }
        }
        for (name, value) in Lag::FAMILIES {
            page.family(name, "gauge");
            for lag in &lags {
                if let Some(value) = value(lag) {
                    page.sample(name, &lag.labels, value);
                }
            }
        }
    }

    /// How far a group is behind in a topic. Queues from which it committed nothing do not count.
    fn lag(
        &self,
        group: &str,
        topic: &Topic,
        delivered: Option<&Arc<Delivered>>,
        labels: String,
        looks_left: &mut usize,
    ) -> Lag {
        let mut lag = Lag { labels, ..Lag::default() };
        let now_ms = self.store.clock().now_ms();
        let mut oldest_unread = Oldest::default();
        let mut oldest_ready = Oldest::default();
        for (queue_id, committed) in self.offsets.of(group, &topic.name) {
            let end = self.store.max_offset(&topic.name, queue_id);
            // Messages that were deleted or purged are not read any more.
            let committed = committed.max(self.store.min_offset(&topic.name, queue_id));
            let reached = delivered.and_then(|delivered| delivered.reached(queue_id));
            let reached = reached.unwrap_or(committed).clamp(committed.min(end), end);
            lag.messages += (end - committed).max(0);
            lag.in_flight += (reached - committed).max(0);
            lag.ready += end - reached;
            if committed < end {
                oldest_unread.look(looks_left, || self.store.store_time(&topic.name, queue_id, committed));
            }
            if reached < end {
                oldest_ready.look(looks_left, || self.store.store_time(&topic.name, queue_id, reached));
            }
        }
        lag.latency_ms = oldest_unread.age_ms(now_ms);
        lag.queueing_ms = oldest_ready.age_ms(now_ms);
        lag
    }
}

/// The oldest message of several queues.
#[derive(Default)]
struct Oldest {
    stored_ms: Option<i64>,
    is_unknown: bool,
}

impl Oldest {
    fn look(&mut self, looks_left: &mut usize, stored_ms: impl FnOnce() -> Option<i64>) {
        if *looks_left == 0 {
            self.is_unknown = true;
            return;
        }
        *looks_left -= 1;
        // A message that retention has deleted has no time any more.
        if let Some(stored_ms) = stored_ms() {
            self.stored_ms = Some(self.stored_ms.map_or(stored_ms, |oldest| oldest.min(stored_ms)));
        }
    }

    /// Its age; 0 if there is no message, None if nobody has looked.
    fn age_ms(&self, now_ms: i64) -> Option<i64> {
        (!self.is_unknown).then(|| self.stored_ms.map_or(0, |stored_ms| (now_ms - stored_ms).max(0)))
    }
}

/// One group's lag in one topic.
#[derive(Default)]
struct Lag {
    labels: String,
    messages: i64,
    in_flight: i64,
    ready: i64,
    latency_ms: Option<i64>,
    queueing_ms: Option<i64>,
}

type LagFamily = (&'static str, fn(&Lag) -> Option<i64>);

impl Lag {
    const SERIES: usize = Self::FAMILIES.len();
    const FAMILIES: [LagFamily; 5] = [
        ("rocketmq_consumer_lag_messages", |lag| Some(lag.messages)),
        ("rocketmq_consumer_lag_latency_milliseconds", |lag| lag.latency_ms),
        ("rocketmq_consumer_inflight_messages", |lag| Some(lag.in_flight)),
        ("rocketmq_consumer_queueing_latency_milliseconds", |lag| lag.queueing_ms),
        ("rocketmq_consumer_ready_messages", |lag| Some(lag.ready)),
    ];
}

fn write_requests(page: &mut Page, latencies: &Latencies) {
    let name = "rocketmq_rpc_latency_milliseconds";
    page.family(name, "histogram");
    for (exchange, times) in latencies.all() {
        if page.has_room(TIME_BOUNDS.len() + 3) {
            let labels = labels(&[
                ("protocol_type", "remoting"),
                ("request_code", &exchange.request_code.to_string()),
                ("response_code", &exchange.response_code.to_string()),
                ("is_long_polling", text(exchange.is_long_polling)),
                ("result", "success"),
            ]);
            page.histogram(name, &labels, &TIME_BOUNDS, &times.counts, times.sum_ms);
        }
    }
}

fn write_timers(page: &mut Page, timers: &Timers) {
    let name = "rocketmq_timer_message_snapshot";
    page.family(name, "gauge");
    for (bound, messages) in DUE_BOUNDS_S.iter().zip(timers.due_within(&DUE_BOUNDS_S)) {
        if page.has_room(1) {
            let labels = labels(&[
                ("storage_type", "local"),
                ("storage_medium", "disk"),
                ("timer_bound_s", &bound.to_string()),
            ]);
            page.sample(name, &labels, messages);
        }
    }
}

fn write_received(page: &mut Page, policy: &Snapshot) {
    let mut received: Vec<(String, ReceivedSums)> = Vec::new();
    for topic in policy.topics() {
        for kind in MessageType::ALL {
            let sums = topic.traffic.sums(kind);
            if sums.messages > 0 && page.has_room(2 + SIZE_BOUNDS.len() + 3) {
                let is_system = text(topic.is_system);
                let labels = labels(&[
                    ("topic", &topic.name),
                    ("message_type", kind.name()),
                    ("is_system", is_system),
                ]);
                received.push((labels, sums));
            }
        }
    }
    page.family("rocketmq_messages_in_total", "counter");
    for (labels, sums) in &received {
        page.sample("rocketmq_messages_in_total", labels, sums.messages);
    }
    page.family("rocketmq_throughput_in_total", "counter");
    for (labels, sums) in &received {
        page.sample("rocketmq_throughput_in_total", labels, sums.bytes);
    }
    page.family("rocketmq_message_size", "histogram");
    for (labels, sums) in &received {
        page.histogram("rocketmq_message_size", labels, &SIZE_BOUNDS, &sums.sizes, sums.size_sum);
    }
}

fn write_transactions(page: &mut Page, policy: &Snapshot) {
    let ended = |topic: &Topic| (topic.traffic.committed.get(), topic.traffic.rolled_back.get());
    let ended: Vec<_> = policy
        .topics()
        .map(|topic| (topic, ended(topic)))
        .filter(|(_, ended)| *ended != (0, 0) && page.has_room(2))
        .collect();
    for (name, is_commit) in
        [("rocketmq_commit_messages_total", true), ("rocketmq_rollback_messages_total", false)]
    {
        page.family(name, "counter");
        for (topic, (committed, rolled_back)) in &ended {
            let value = if is_commit { committed } else { rolled_back };
            page.sample(name, &labels(&[("topic", &topic.name)]), value);
        }
    }
}

type DeliveredFamily = (&'static str, fn(&Delivered) -> u64);

fn write_delivered(page: &mut Page, policy: &Snapshot) {
    let mut all: Vec<(String, Arc<Delivered>)> = Vec::new();
    for group in policy.groups() {
        for delivered in group.traffic.all() {
            let Some(topic) = policy.topic(&delivered.topic) else {
                group.traffic.forget(&delivered.topic);
                continue;
            };
            if page.has_room(3) {
                let is_system = topic.is_system || group.is_system;
                all.push((pair_labels(&group.name, &topic.name, is_system, false), delivered));
            }
        }
    }
    let families: [DeliveredFamily; 3] = [
        ("rocketmq_messages_out_total", Delivered::messages),
        ("rocketmq_throughput_out_total", Delivered::bytes),
        ("rocketmq_send_to_dlq_messages_total", |delivered| delivered.dead_letters.get()),
    ];
    for (name, value) in families {
        page.family(name, "counter");
        for (labels, delivered) in &all {
            page.sample(name, labels, value(delivered));
        }
    }
}

fn pair_labels(group: &str, topic: &str, is_system: bool, names_retries: bool) -> String {
    let mut pairs = vec![("consumer_group", group), ("topic", topic), ("is_system", text(is_system))];
    if names_retries {
        pairs.push(("is_retry", text(topic.starts_with(RETRY_PREFIX))));
    }
    labels(&pairs)
}

fn text(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}
