//! The state that hot requests share: the store, the policy, committed offsets, and who waits for what.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use metaq_store::{Store, StoreEvents};
use metaq_wire::MessageIds;
use parking_lot::Mutex;

use crate::limits::flow::Flow;
use crate::net::peer::Peer;
use crate::net::sink::Sink;
use crate::policy::Policy;
use crate::pull::expressions::Expressions;
use crate::pull::function_lines::FunctionLines;
use crate::pull::hold::Holds;
use crate::pull::offsets::Offsets;
use crate::settings::BrokerSettings;
use crate::timer::delay_levels::Delays;
use crate::timer::delivery::{TIMERS_PIN, Timers};
use crate::transaction::open::Transactions;

/// A broker's data plane, without its sockets.
pub struct Broker {
    pub store: Arc<Store>,
    pub settings: BrokerSettings,
    pub store_host: SocketAddr,
    pub policy: Policy,
    pub offsets: Offsets,
    pub delays: Delays,
    pub expressions: Expressions,
    pub function_lines: FunctionLines,
    pub transactions: Transactions,
    pub timers: Timers,
    pub(crate) holds: Holds,
    pub(crate) flow: Flow,
    /// What every stored message gets besides its own properties, after a separator.
    pub(crate) added_properties: Vec<u8>,
    /// The text of its records' ids, ready but for the offset.
    pub(crate) message_ids: MessageIds,
    next_queue: AtomicU32,
    awaiting_flush: Mutex<Vec<Arc<Peer>>>,
    sync_failed: AtomicBool,
}

impl Broker {
    pub fn new(
        store: Arc<Store>,
        settings: BrokerSettings,
        store_host: SocketAddr,
    ) -> std::io::Result<Arc<Self>> {
        let added_properties = format!(
            "\u{2}MSG_REGION\u{1}{}\u{2}TRACE_ON\u{1}true\u{2}CLUSTER\u{1}{}\u{2}",
            settings.region, settings.cluster
        );
        let broker = Arc::new(Broker {
            store: Arc::clone(&store),
            holds: Holds::new(settings.hold_max),
            function_lines: FunctionLines::new(settings.hold_max)?,
            flow: Flow::new(store.clock().clone(), settings.send_hold_max, settings.hold_max),
            delays: Delays::new(settings.delay_levels_ms.clone()),
            transactions: Transactions::new(settings.transactions_open_max),
            timers: Timers::default(),
            settings,
            store_host,
            policy: Policy::new(),
            offsets: Offsets::default(),
            expressions: Expressions::default(),
            added_properties: added_properties.into_bytes(),
            message_ids: MessageIds::of(store_host),
            next_queue: AtomicU32::new(0),
            awaiting_flush: Mutex::default(),
            sync_failed: AtomicBool::new(false),
        });
        // Until the timer log says what waits, everything may.
        store.pin(TIMERS_PIN, 0);
        Ok(broker)
    }

    /// Hears of arrivals and flushes from now on, and whoever did so before no longer.
    pub(crate) fn follow_store(self: &Arc<Self>) {
        self.store.set_events(Arc::new(Events { broker: Arc::downgrade(self) }));
    }

    /// The queue of a message whose sender left the choice to the broker.
    pub(crate) fn choose_queue(&self, write_queues: i32) -> i32 {
        let turn = self.next_queue.fetch_add(1, Relaxed);
        (turn % write_queues.max(1) as u32) as i32
    }

    /// Once per pass: what its requests owe the store together.
    pub(crate) fn settle(&self, sink: &mut Sink) {
        if sink.take_end() {
            self.write_ends();
            sink.note_append();
        }
        sink.settle(&self.store);
    }

    /// Has `peer` woken at the next flush; to be asked again after every wake-up.
    pub(crate) fn wake_on_flush(&self, peer: &Arc<Peer>) {
        if !peer.awaits_flush.swap(true, SeqCst) {
            self.awaiting_flush.lock().push(Arc::clone(peer));
        }
    }

    /// Wakes everybody who asked for it, and remembers nobody.
    pub(crate) fn wake_flush_waiters(&self) {
        let waiting = std::mem::take(&mut *self.awaiting_flush.lock());
        for peer in waiting {
            // In this order: a peer that still waits finds the mark gone when it wakes, and asks again.
            peer.awaits_flush.store(false, SeqCst);
            peer.wake();
        }
    }

    /// Delivers everything that is due after a clock jump, so that consumers can read it; false if that takes longer
    /// than `timeout`.
    pub fn catch_up(&self, timeout: Duration) -> bool {
        self.timers.rounds.wait_for_one(timeout)
            && self.delays.rounds.wait_for_one(timeout)
            && self.store.wait_confirmed(self.store.end_offset(), timeout)
    }

    pub(crate) fn sync_failed(&self) -> bool {
        self.sync_failed.load(Relaxed)
    }
}

/// What the store tells us; it must not keep the broker alive.
struct Events {
    broker: Weak<Broker>,
}

impl StoreEvents for Events {
    fn arrived(&self, topic: &str, queue_id: i32, max_offset: i64, tag_codes: &[i64]) {
        if let Some(broker) = self.broker.upgrade() {
            broker.wake_pulls(topic, queue_id, max_offset, tag_codes);
        }
    }

    fn confirmed(&self, _physical_offset: i64, failed: bool) {
        let Some(broker) = self.broker.upgrade() else {
            return;
        };
        if failed {
            broker.sync_failed.store(true, Relaxed);
        }
        broker.wake_flush_waiters();
    }
}
