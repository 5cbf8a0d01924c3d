//! A broker plane's rooms, put together: what each of them does stands in its own folder.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use metaq_store::{Store, StoreEvents};
use metaq_wire::Record;
use parking_lot::Mutex;

use crate::limits::flow::Flow;
use crate::metrics::latency::Latencies;
use crate::net::answers::Answers;
use crate::net::peer::Peer;
use crate::policy::Policy;
use crate::pull::Puller;
use crate::pull::offset_requests::OffsetRequests;
use crate::pull::offsets::Offsets;
use crate::pull::signs_of_life::SignsOfLife;
use crate::pull::visible_end::VisibleEnd;
use crate::send::Sender;
use crate::send::rewrite::AddedProperties;
use crate::settings::BrokerSettings;
use crate::timer::delay_levels::DelayLevels;
use crate::timer::delivery::{TIMERS_PIN, Timers};
use crate::timer::due_time::DueTimes;
use crate::transaction::Transactions;

/// A broker's data plane, without its sockets and threads.
pub struct Broker {
    pub store: Arc<Store>,
    pub store_host: SocketAddr,
    pub policy: Arc<Policy>,
    pub offsets: Arc<Offsets>,
    pub offset_requests: OffsetRequests,
    pub sends: Sender,
    pub pulls: Puller,
    pub transactions: Arc<Transactions>,
    pub delay_levels: Arc<DelayLevels>,
    pub timers: Timers,
    pub due_times: DueTimes,
    pub latencies: Arc<Latencies>,
    pub(crate) flow: Arc<Flow>,
    pub(crate) flush_timeout_ms: u64,
    /// The log belongs to a master elsewhere: this plane reads it and appends nothing.
    pub(crate) is_replica: bool,
    confirmations: Confirmations,
}

/// Connections with acknowledgements that wait for the store.
#[derive(Default)]
struct Confirmations {
    waiting: Mutex<Vec<Arc<Peer>>>,
    sync_failed: AtomicBool,
    /// The plane stops and waits for no confirmation.
    given_up: AtomicBool,
}

impl Broker {
    pub fn new(
        store: Arc<Store>,
        settings: BrokerSettings,
        store_host: SocketAddr,
        is_replica: bool,
    ) -> std::io::Result<Arc<Self>> {
        let flush_timeout = Duration::from_millis(settings.flush_timeout_ms);
        let policy = Arc::new(Policy::new(settings.metrics_pairs_max, settings.metrics_queues_max));
        let offsets = Arc::new(Offsets::new(settings.offsets));
        let latencies = Arc::new(Latencies::default());
        let added = Arc::new(AddedProperties::new(&settings.region, &settings.cluster));
        let due_times = DueTimes::new(store.clock().clone(), &settings.timer);
        let delay_levels = Arc::new(DelayLevels::new(
            Arc::clone(&store),
            store_host,
            settings.timer.delay_levels_ms.clone(),
        ));
        let visible_end = Arc::new(VisibleEnd::new(Arc::clone(&store), is_replica));
        let signs = Arc::new(SignsOfLife::default());
        let flow = Arc::new(Flow::new(
            store.clock().clone(),
            settings.name.clone(),
            settings.limits.clone(),
            settings.pull.hold_max,
        ));
        let transactions = Arc::new(Transactions::new(
            Arc::clone(&store),
            store_host,
            settings.transaction.clone(),
            flush_timeout,
            Arc::clone(&policy),
            Arc::clone(&offsets),
            Arc::clone(&delay_levels),
            due_times.clone(),
            Arc::clone(&added),
        ));
        let broker = Arc::new(Broker {
            offset_requests: OffsetRequests::new(
                Arc::clone(&store),
                Arc::clone(&policy),
                Arc::clone(&offsets),
                Arc::clone(&visible_end),
                Arc::clone(&signs),
                is_replica,
                settings.stands_in,
            ),
            sends: Sender::new(
                Arc::clone(&store),
                store_host,
                &settings,
                Arc::clone(&policy),
                Arc::clone(&transactions),
                Arc::clone(&delay_levels),
                due_times.clone(),
                Arc::clone(&flow),
                added,
            ),
            pulls: Puller::new(
                Arc::clone(&store),
                settings.name.clone(),
                settings.pull.clone(),
                Arc::clone(&policy),
                Arc::clone(&offsets),
                Arc::clone(&flow),
                visible_end,
                Arc::clone(&latencies),
                signs,
                is_replica,
            )?,
            due_times,
            latencies,
            timers: Timers::new(Arc::clone(&store), store_host, settings.timer.roll_ms, flush_timeout),
            store: Arc::clone(&store),
            store_host,
            policy,
            offsets,
            transactions,
            delay_levels,
            flow,
            flush_timeout_ms: settings.flush_timeout_ms,
            is_replica,
            confirmations: Confirmations::default(),
        });
        if is_replica {
            // An earlier role on this store may have left it.
            store.unpin(TIMERS_PIN);
        } else {
            // Until the timer log has been read, any record may still be needed.
            store.pin(TIMERS_PIN, 0);
        }
        Ok(broker)
    }

    /// Receives the store's events from now on. The last broker to ask for them gets them.
    pub(crate) fn follow_store(self: &Arc<Self>) {
        self.pulls.note_log_end();
        self.store.set_events(Arc::new(Events { broker: Arc::downgrade(self) }));
    }

    /// Hands the store, once per pass, the work that its requests left together.
    pub(crate) fn finish_pass(&self, answers: &mut Answers) {
        if answers.take_ended() {
            self.transactions.write_ends();
            answers.note_appended();
        }
        answers.finish_pass(&self.store);
    }

    /// The topic of the record that starts there, confirmed or not.
    pub(crate) fn topic_of(&self, physical_offset: i64) -> Option<String> {
        let bytes = self.store.appended_record_at(physical_offset)?;
        Record::decode(&bytes).ok().map(|record| String::from_utf8_lossy(record.topic).into_owned())
    }

    /// Wakes `peer` when the store confirms more. Ask again after every wake-up.
    pub(crate) fn wake_on_confirmation(&self, peer: &Arc<Peer>) {
        if !peer.awaits_confirmation.swap(true, SeqCst) {
            self.confirmations.waiting.lock().push(Arc::clone(peer));
        }
    }

    /// Wakes every peer that asked for it, and remembers none.
    pub(crate) fn wake_unconfirmed(&self) {
        let waiting = std::mem::take(&mut *self.confirmations.waiting.lock());
        for peer in waiting {
            // In this order: a peer that still waits finds the mark gone when it wakes, and asks again.
            peer.awaits_confirmation.store(false, SeqCst);
            peer.wake();
        }
    }

    /// Delivers everything that is due after a clock jump, so that consumers can read it; false if that takes longer
    /// than `timeout`. A replica delivers nothing.
    pub fn catch_up(&self, timeout: Duration) -> bool {
        if self.is_replica {
            return true;
        }
        self.timers.rounds.wait_for_one(timeout)
            && self.delay_levels.rounds.wait_for_one(timeout)
            && self.store.wait_confirmed(self.store.end_offset(), timeout)
    }

    /// Delivers no delayed message from now on, so that its progress can be handed over; false if a delivery that is
    /// under way takes longer than `timeout`.
    pub fn hold_deliveries(&self, timeout: Duration) -> bool {
        if self.is_replica {
            return true;
        }
        let levels = self.delay_levels.rounds.hold(timeout);
        self.timers.rounds.hold(timeout) && levels
    }

    pub fn release_deliveries(&self) {
        self.delay_levels.rounds.release();
        self.timers.rounds.release();
    }

    /// Answers acknowledgements that are not confirmed when the plane stops as not confirmed by replicas.
    pub(crate) fn give_up_confirmations(&self) {
        self.confirmations.given_up.store(true, SeqCst);
    }

    pub(crate) fn gave_up_confirmations(&self) -> bool {
        self.confirmations.given_up.load(SeqCst)
    }

    pub(crate) fn sync_failed(&self) -> bool {
        self.confirmations.sync_failed.load(Relaxed)
    }
}

/// Passes the store's events on. It does not keep the broker alive.
struct Events {
    broker: Weak<Broker>,
}

impl StoreEvents for Events {
    fn arrived(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) {
        if let Some(broker) = self.broker.upgrade() {
            broker.pulls.wake(topic, queue_id, max_offset, tag_codes);
        }
    }

    fn confirmed(&self, _physical_offset: i64, failed: bool) {
        let Some(broker) = self.broker.upgrade() else {
            return;
        };
        if failed {
            broker.confirmations.sync_failed.store(true, Relaxed);
        }
        broker.wake_unconfirmed();
    }
}
