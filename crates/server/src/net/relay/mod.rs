//! Requests that only the master can answer, passed on to it by a replica.
//!
//! Java clients look for a new master every 30 seconds only. Until then they send to the broker that was master before,
//! which passes their requests on and the answers back. Requests keep everything but their opaque, and get the field
//! [`RELAYED`], so that two brokers that take each other for the master do not send a request around in a circle.
//!
//! A few connections go to the master (`link`). All requests of one client connection take the same one, so they arrive
//! in the order in which the client sent them.
//!
//! A request that cannot be passed on is answered with code 14, which clients try again. The same code answers a request
//! that the master got and did not answer in time: nobody knows whether it was carried out. Another code could not say
//! more. With 14 a producer sends again, as it does when its own connection to a master breaks: a message may be stored
//! twice, but none is lost.

mod link;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use metaq_wire::Encoding;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::ServerError;
use crate::codes::response_code;
use crate::net::answers::Answers;
use crate::net::by_network::Loads;
use crate::net::crossing::Crossed;
use crate::net::peer::Peer;
use crate::net::relay::link::Link;
use crate::settings::ServerSettings;
use crate::transaction::shares::NameKey;

/// The field that marks a request as relayed.
pub(crate) const RELAYED: &str = "metaqRelayed";
/// Connections to the master.
const LINKS: usize = 4;

/// The way to the present master, if there is one.
pub struct Relay {
    master: ArcSwapOption<Master>,
    changing: Mutex<()>,
    /// Requests that have no answer yet.
    under_way: Arc<Mutex<Loads>>,
    limits: Limits,
}

#[derive(Clone, Copy)]
struct Limits {
    timeout: Duration,
    requests_max: usize,
    bytes_max: usize,
    frame_bytes_max: usize,
}

struct Master {
    address: Arc<str>,
    links: Vec<Arc<Link>>,
}

/// One request among those under way, until it is dropped.
struct Share {
    under_way: Arc<Mutex<Loads>>,
    network: NameKey,
    bytes: usize,
}

/// A request on its way to the master.
struct Waiting {
    request: Crossed,
    deadline: Instant,
    share: Share,
}

/// The client that waits for the answer to a relayed request.
struct Asker {
    peer: Arc<Peer>,
    encoding: Encoding,
    opaque: i32,
    is_oneway: bool,
}

impl Relay {
    pub fn new(settings: &ServerSettings) -> Self {
        let limits = Limits {
            timeout: Duration::from_millis(settings.relay_timeout_ms),
            requests_max: settings.relay_requests_max,
            bytes_max: settings.relay_bytes_max,
            frame_bytes_max: settings.frame_bytes_max,
        };
        Relay { master: ArcSwapOption::empty(), changing: Mutex::new(()), under_way: Arc::default(), limits }
    }

    /// Relays to this `host:port` from now on; None relays nothing. Requests that another address has got are still
    /// answered by it; those that it has not got are refused with code 14.
    pub fn set_master(&self, address: Option<&str>) -> Result<(), ServerError> {
        if let Some(address) = address {
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(ServerError::BadRelay(address.to_owned()));
            }
        }
        let _one_at_a_time = self.changing.lock();
        if self.master.load().as_ref().map(|master| &*master.address) == address {
            return Ok(());
        }
        let next = address.map(|address| {
            let address = Arc::from(address);
            let links = (0..LINKS).map(|_| Arc::new(Link::new(Arc::clone(&address), self.limits))).collect();
            Arc::new(Master { address, links })
        });
        if let Some(former) = self.master.swap(next) {
            former.links.iter().for_each(|link| link.close());
        }
        Ok(())
    }

    pub fn has_master(&self) -> bool {
        self.master.load().is_some()
    }

    /// Passes a request on, or answers why not. Gives it back if there is no master.
    pub fn pass_on(&self, runtime: &Handle, request: Crossed) -> Result<(), Crossed> {
        let master = self.master.load();
        let Some(master) = master.as_ref() else {
            return Err(request);
        };
        if request.header().is_ok_and(|header| header.field(RELAYED).is_ok_and(|mark| mark.is_some())) {
            let remark = "[RELAY] another broker relayed this request here, but this broker is not the master; try again later";
            Asker::of(&request).refuse(response_code::SERVICE_NOT_AVAILABLE, remark);
            return Ok(());
        }
        let Some(share) = self.share(&request) else {
            let Limits { requests_max, bytes_max, .. } = self.limits;
            let remark = format!(
                "[OVERLOAD] too many requests are being relayed to the master; the limits are {requests_max} requests (relay_requests_max) and {bytes_max} bytes (relay_bytes_max), and half of that for one address; try again later"
            );
            Asker::of(&request).refuse(response_code::SYSTEM_BUSY, &remark);
            return Ok(());
        };
        let link = &master.links[request.peer.id as usize % master.links.len()];
        link.offer(runtime, Waiting { request, deadline: Instant::now() + self.limits.timeout, share });
        Ok(())
    }

    /// Counts one more request as under way; None if that would exceed the limits.
    fn share(&self, request: &Crossed) -> Option<Share> {
        let Limits { requests_max, bytes_max, .. } = self.limits;
        let (network, bytes) = (request.peer.network, request.len());
        let has_room = self.under_way.lock().add(network, bytes, requests_max, bytes_max);
        has_room.then(|| Share { under_way: Arc::clone(&self.under_way), network, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.under_way.lock().remove(self.network, self.bytes);
    }
}

impl Asker {
    fn of(request: &Crossed) -> Self {
        Asker {
            peer: Arc::clone(&request.peer),
            encoding: request.encoding,
            opaque: request.opaque,
            is_oneway: request.oneway,
        }
    }

    fn refuse(&self, code: i32, remark: &str) {
        self.peer.counts.refused.add(1);
        if !self.is_oneway {
            let mut answers = Answers::default();
            answers.add(self.encoding, self.opaque, code, remark, &[]);
            let _gone = self.peer.post(answers);
        }
    }
}
