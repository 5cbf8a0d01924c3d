//! Bytes in motion: listeners, connections and the requests that touch every message.
//!
//! Reading order, which follows a request:
//!
//! 1. [`net`]: a listener accepts a connection, the connection reads frames, and `route` finds the room that answers.
//!    Requests that are not hot cross to Python.
//! 2. [`send`], [`pull`] and [`transaction`] are the rooms of the hot requests; [`timer`] delivers messages that wait,
//!    [`limits`] slows down clients that are too fast.
//! 3. [`replicate`] copies the log to replicas, and from a master.
//! 4. [`metrics`] counts what the handlers do, for Prometheus.
//! 5. [`broker`] puts the rooms together, [`plane`] gives them threads and a lifetime.
//!
//! [`codes`] names the numbers of the protocol. [`policy`] holds Python's decisions about topics and groups, over the map in
//! [`by_name`], [`settings`] its configuration; Rust applies both per message and owns neither. [`rounds`] is the sleep of a
//! thread that looks for work, [`notice`] wakes the event loop of Python.
//!
//! `tests/support` runs all of this in one process, over loopback, with a clock and a disk that the test controls;
//! `examples/hot_requests.rs` counts the instructions of a request.

mod broker;
mod by_name;
mod codes;
mod limits;
mod metrics;
mod net;
mod notice;
#[cfg(test)]
mod one_pass;
mod plane;
mod policy;
mod pull;
mod replicate;
mod rounds;
mod send;
mod settings;
mod timer;
mod transaction;

pub use broker::Broker;
pub use codes::{HOT_CODES, request_code, response_code};
pub use limits::rate::{Limit, Rates};
pub use metrics::scrape::{Scrape, Scraped};
pub use metrics::slow_requests::{SlowRequest, SlowRequests};
pub use metrics::traffic::{GroupTraffic, TopicTraffic};
pub use net::counts::ListenerFigures;
pub use net::crossing::{Crossed, Event};
pub use net::listener::{HotRequests, Listener, Shared};
pub use net::route::Refusal;
pub use plane::{BrokerPlane, PlaneFigures};
pub use policy::{Group, Subscription, Topic};
pub use pull::function::Batch;
pub use pull::members::{Member, Members};
pub use replicate::apache::master::{ApacheMaster, ApacheSlaveFigures};
pub use replicate::apache::slave::{ApacheFollower, ApacheFollowerFigures};
pub use replicate::follower::{Follower, FollowerFigures};
pub use replicate::hub::{Hub, LinkFigures};
pub use replicate::socket::{LinkListener, LinkSocket};
pub use replicate::{ReplicationSettings, StatePosition};
pub use send::copy::Resend;
pub use settings::{
    BrokerSettings, LimitSettings, OffsetLimits, PullSettings, ServerSettings, TimerSettings,
    TransactionSettings,
};
pub use timer::delivery::TimerFigures;
pub use timer::listing::{DelayedCounts, DelayedListing, DelayedMessage, DelayedSearch, LevelCount};
pub use timer::recall::{Recall, RecallOutcome};
pub use transaction::by_hand::{Decided, OpenTransaction, OpenTransactions};
pub use transaction::open::{End, Look};

/// An error of a listener, of a plane, or of a call from Python.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}")]
    Bind { address: String, source: std::io::Error },
    #[error("cannot start the network threads: {0}")]
    Threads(std::io::Error),
    #[error("another broker plane serves this listener: stop it first")]
    SecondPlane,
    #[error("this broker plane was stopped: build a new one")]
    PlaneStopped,
    #[error("{what} is not an ip:port address: {text}")]
    BadAddress { what: &'static str, text: String },
    #[error("set_relay: {0:?} is not an address; give host:port of the master")]
    BadRelay(String),
    #[error("connection {0} is closed")]
    ConnectionGone(u64),
    #[error("connection {id} has {queued} bytes waiting to be read by its peer; the limit is {limit}")]
    OutputFull { id: u64, queued: usize, limit: usize },
    #[error("no message begins at physical offset {0}")]
    NoRecord(i64),
    #[error(transparent)]
    Store(metaq_store::StoreError),
    #[error("the message is stored, but the disk did not confirm it in time")]
    NotFlushed,
    #[error("the request cannot be sent: {0}")]
    Frame(metaq_wire::WireError),
}
