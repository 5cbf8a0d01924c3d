//! Bytes in motion: listeners, connections and the requests that touch every message.
//!
//! Reading order, which is the way of a request:
//! [`net::listener`] binds and accepts → [`connection`] reads all the socket has → [`route`] decides whether a frame is
//! hot or crosses to Python ([`crossing`]) → [`send`], [`pull`], [`queues`], [`end_transaction`] answer → [`output`] gathers the
//! answers for one write. A pull that finds nothing waits in [`hold`]; a send that waits for the disk waits in
//! its connection's [`sink`]. What Python decides arrives as data in [`policy`], and the
//! filters it has compiled for pulls that bring their own in [`expressions`]. Pulls that a function filters stand in
//! [`function_lines`] until Python fetches them in [`function`]. What waits because a topic or a group has a limit
//! ([`rate`]) waits in [`flow`] and [`paced`]. Threads that look for what is due do so in [`rounds`]. All of it belongs
//! to a [`plane`], the lifetime of a broker's role on a listener that lives on.

mod broker;
mod codes;
mod limits;
mod net;
mod plane;
mod policy;
mod pull;
mod rounds;
mod send;
mod settings;
mod timer;
mod transaction;

pub use broker::Broker;
pub use codes::{HOT_CODES, request_code, response_code};
pub use limits::rate::{Limit, Rates};
pub use net::counts::ListenerFigures;
pub use net::crossing::{Crossed, Event};
pub use net::listener::{HotRequests, Listener, Shared};
pub use net::route::Refusal;
pub use plane::{BrokerPlane, PlaneFigures};
pub use policy::{Group, Subscription, Topic};
pub use pull::function::Batch;
pub use send::copy::Resend;
pub use settings::{
    BrokerSettings, LimitSettings, PullSettings, ServerSettings, TimerSettings, TransactionSettings,
};
pub use timer::delivery::TimerFigures;
pub use timer::recall::Recall;
pub use transaction::open::Look;

/// What keeps a server from starting or a request to a client from being sent.
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
    #[error("connection {0} has left")]
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
