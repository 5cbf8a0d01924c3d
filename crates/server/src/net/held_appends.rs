//! Requests that append, kept back while a planned switch moves the master elsewhere.
//!
//! From [`Shared::hold_appends`] on, nothing is appended by a hot request: sends, ends of transactions and committed
//! offsets wait here in the order of their arrival. [`Shared::release_appends`] hands them to the plane that is attached
//! by then, in that order and before any later one. Clients notice nothing but a delay.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::by_network::Loads;
use crate::net::crossing::Crossed;
use crate::net::listener::Shared;
use crate::net::route::{Ask, Outcome};
use crate::settings::ServerSettings;

/// After this many rounds of a release, new requests wait for its end instead of queueing up behind it.
const OPEN_ROUNDS: usize = 3;
const OVERDUE: &str =
    "[ROLE] this broker changes its role, and that takes too long; try again later or ask another broker";

/// The requests that are kept back.
pub struct HeldAppends {
    /// Read before the lock, because it is nearly always false.
    is_on: AtomicBool,
    state: Mutex<State>,
    /// Held by the one thread that hands the requests out.
    releasing: Mutex<()>,
    requests_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    requests: VecDeque<HeldAppend>,
    loads: Loads,
    /// None while nothing is kept back.
    deadline: Option<Instant>,
}

struct HeldAppend {
    request: Crossed,
    /// Python has seen it before.
    again: bool,
}

impl HeldAppends {
    pub fn new(settings: &ServerSettings) -> Self {
        HeldAppends {
            is_on: AtomicBool::new(false),
            state: Mutex::default(),
            releasing: Mutex::new(()),
            requests_max: settings.held_requests_max,
            bytes_max: settings.held_bytes_max,
        }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Keeps the request, or refuses it if there is no room. None if nothing is kept back any more.
    #[cold]
    pub fn keep(&self, ask: &Ask<'_>, answers: &mut Answers) -> Option<Outcome> {
        let mut state = self.state.lock();
        state.deadline?;
        let Some(request) = Crossed::of(ask) else {
            drop(state);
            return Some(ask.refuse(answers, response_code::SYSTEM_BUSY, &ask.peer.memory.no_room()));
        };
        let (network, bytes) = (ask.peer.network, request.len());
        if !state.loads.add(network, bytes, self.requests_max, self.bytes_max) {
            drop(state);
            let remark = format!(
                "[OVERLOAD] this broker changes its role and keeps as many requests back as it may: {} (held_requests_max) or {} bytes (held_bytes_max), or half of that of this address; try again later",
                self.requests_max, self.bytes_max
            );
            return Some(ask.refuse(answers, response_code::SYSTEM_BUSY, &remark));
        }
        state.requests.push_back(HeldAppend { request, again: ask.again });
        Some(Outcome::Done)
    }

    fn is_overdue(&self, now: Instant) -> bool {
        self.is_on() && self.state.lock().deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Hands every request out in order, and keeps none back once all are through. The caller holds `releasing`.
    fn release(&self, mut handle: impl FnMut(HeldAppend)) -> bool {
        for round in 0.. {
            let mut state = self.state.lock();
            let was_on = state.deadline.is_some();
            state.loads = Loads::default();
            let requests = std::mem::take(&mut state.requests);
            if requests.is_empty() || round == OPEN_ROUNDS {
                requests.into_iter().for_each(&mut handle);
                state.deadline = None;
                self.is_on.store(false, SeqCst);
                return was_on;
            }
            drop(state);
            requests.into_iter().for_each(&mut handle);
        }
        false
    }
}

impl Shared {
    /// Keeps hot requests that append back, at most for `timeout`; then they are refused. Once this returns, no request
    /// that came before is still being handled.
    pub fn hold_appends(&self, timeout: Duration) {
        {
            let mut state = self.held_appends.state.lock();
            state.deadline = Some(Instant::now() + timeout);
            self.held_appends.is_on.store(true, SeqCst);
        }
        self.finish_passes();
    }

    /// Handles everything that was kept back. Returns false if nothing was kept back any more, because the time was over.
    pub fn release_appends(&self) -> bool {
        let _one_at_a_time = self.held_appends.releasing.lock();
        self.held_appends.release(|held| self.handle_held(&held.request, held.again))
    }

    /// Refuses what is kept back once its time is over.
    pub(crate) fn end_overdue_hold(&self, now: Instant) {
        if !self.held_appends.is_overdue(now) {
            return;
        }
        // If they are being released right now, that is better.
        let releasing = self.held_appends.releasing.try_lock();
        if releasing.is_some() && self.held_appends.is_overdue(now) {
            self.held_appends.release(|held| {
                held.request.peer.counts.refused.add(1);
                let code = response_code::SERVICE_NOT_AVAILABLE;
                held.request.respond(code, Some(OVERDUE), &[], bytes::Bytes::new());
            });
        }
    }
}
