//! A broker plane: everything that makes a listener a broker's, from its start to its stop.
//!
//! A role is a lifetime. A process that becomes master builds a plane on its listener and its store, loads what the
//! plane must know, and starts it; a process that is master no longer stops it. Connections live on meanwhile: until the
//! next plane starts, their hot requests are refused. The plane's threads end with it, and everything that waits in it
//! is answered.
//!
//! The plane of a replica serves reads from its own copy of the log and appends nothing: it delivers no delayed, timed
//! or transactional message, and relays requests that would append to the master ([`crate::net`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use metaq_store::Store;
use parking_lot::Mutex;

use crate::ServerError;
use crate::broker::Broker;
use crate::limits::flow::TICK;
use crate::net::listener::{Listener, Shared};
use crate::settings::BrokerSettings;
use crate::timer::delivery::TimerFigures;

/// Interval between two looks for waits that have lasted long enough.
const CARE_INTERVAL: Duration = Duration::from_millis(100);

/// The broker plane of a listener. Once stopped, it does not start again: build another.
pub struct BrokerPlane {
    pub broker: Arc<Broker>,
    shared: Arc<Shared>,
    life: Mutex<Life>,
}

/// A plane in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneFigures {
    pub transactions_open: u64,
    /// Acknowledgements and pulls that wait for a limit now.
    pub limits_waiting: u64,
    pub timers: TimerFigures,
}

enum Life {
    New,
    Running(Vec<JoinHandle<()>>),
    Stopped,
}

impl BrokerPlane {
    /// Refused while another plane serves the listener.
    pub fn new(
        listener: &Listener,
        store: Arc<Store>,
        settings: BrokerSettings,
        is_replica: bool,
    ) -> Result<Self, ServerError> {
        if !listener.shared.is_free() {
            return Err(ServerError::SecondPlane);
        }
        let store_host = address("store_host", &settings.store_host, listener.port())?;
        let broker = Broker::new(store, settings, store_host, is_replica).map_err(ServerError::Threads)?;
        Ok(BrokerPlane { broker, shared: Arc::clone(&listener.shared), life: Mutex::new(Life::New) })
    }

    /// Starts to deliver what is due and to answer the listener's hot requests.
    pub fn start(&self) -> Result<(), ServerError> {
        let mut life = self.life.lock();
        match *life {
            Life::New => {}
            Life::Running(_) => return Ok(()),
            Life::Stopped => return Err(ServerError::PlaneStopped),
        }
        if !self.shared.attach(&self.broker) {
            return Err(ServerError::SecondPlane);
        }
        let mut threads = Vec::new();
        let started = self.spawn_all(&mut threads);
        *life = Life::Running(threads);
        drop(life);
        started.inspect_err(|_| self.stop(false))
    }

    pub fn figures(&self) -> PlaneFigures {
        PlaneFigures {
            transactions_open: self.broker.transactions.open_count() as u64,
            limits_waiting: self.broker.flow.waiting() as u64,
            timers: self.broker.timers.figures(),
        }
    }

    fn spawn_all(&self, threads: &mut Vec<JoinHandle<()>>) -> Result<(), ServerError> {
        if !self.broker.is_replica {
            threads.push(self.spawn("metaq-delay", |broker| broker.delay_levels.run())?);
            threads.push(self.spawn("metaq-timer", |broker| broker.timers.run())?);
        }
        threads.push(self.spawn("metaq-waits", Broker::run_waits)?);
        Ok(())
    }

    fn spawn(&self, name: &str, work: fn(&Broker)) -> Result<JoinHandle<()>, ServerError> {
        let broker = Arc::clone(&self.broker);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&broker));
        thread.map_err(ServerError::Threads)
    }

    /// Refuses hot requests from now on, ends the plane's threads and answers everything that waits in it. What was
    /// answered as stored is as safe as it was said to be; offsets and progress can still be read. Safe to call twice.
    ///
    /// Sends wait for their confirmation as usual. Without `wait_confirmed`, for a master that was replaced and can
    /// confirm nothing, those that are not confirmed are answered with code 12 at once.
    pub fn stop(&self, wait_confirmed: bool) {
        let mut life = self.life.lock();
        let Life::Running(threads) = std::mem::replace(&mut *life, Life::Stopped) else {
            return;
        };
        let broker = &self.broker;
        let was_attached = self.shared.detach(broker);
        for rounds in [&broker.delay_levels.rounds, &broker.timers.rounds, &broker.flow.rounds] {
            rounds.stop();
        }
        for thread in threads {
            // A panic of that thread was printed by it; there is nothing to add here.
            let _ = thread.join();
        }
        broker.answer_waits();
        if !wait_confirmed {
            broker.give_up_confirmations();
        } else if !broker.is_replica {
            let patience = Duration::from_millis(broker.flush_timeout_ms);
            let _answered_as_not_confirmed = broker.store.wait_confirmed(broker.store.end_offset(), patience);
        }
        if was_attached {
            self.shared.answer_unconfirmed();
        }
        // Peers that waited for this plane's store must be free to wait for the next one's.
        broker.wake_unconfirmed();
    }
}

impl Drop for BrokerPlane {
    fn drop(&mut self) {
        self.stop(true);
    }
}

impl Broker {
    /// The thread that ends waits: for a limit as its time comes, for a message when it lasted long enough.
    fn run_waits(&self) {
        let mut next_look = Instant::now() + CARE_INTERVAL;
        let mut has_more = false;
        loop {
            let pause = next_look.saturating_duration_since(Instant::now());
            let goes_on = match self.flow.waiting() {
                _ if has_more => !self.flow.rounds.is_stopped(),
                0 => self.flow.rounds.pause(pause),
                _ => self.flow.rounds.sleep(TICK.min(pause)),
            };
            if !goes_on {
                return;
            }
            self.flow.release_due();
            self.pulls.serve_paced();
            // In parts, so that one kind of wait does not hold up the others.
            has_more = self.pulls.serve_woken();
            let now = Instant::now();
            if now < next_look {
                continue;
            }
            if self.pulls.end_overdue(now) {
                has_more = true;
                continue;
            }
            next_look = now + CARE_INTERVAL;
            if !self.is_replica {
                // Nobody waits for the flush of a commit; without this it would wait for the next message's.
                self.transactions.flush_ends();
            }
        }
    }

    /// Answers everything that waits here. From now on nothing waits.
    fn answer_waits(&self) {
        self.pulls.close();
        self.flow.release(i64::MAX);
    }
}

/// Reads `ip:port`; port 0 stands for `bound_port`.
fn address(what: &'static str, text: &str, bound_port: u16) -> Result<SocketAddr, ServerError> {
    let mut address: SocketAddr =
        text.parse().map_err(|_| ServerError::BadAddress { what, text: text.to_string() })?;
    if address.port() == 0 {
        address.set_port(bound_port);
    }
    Ok(address)
}
