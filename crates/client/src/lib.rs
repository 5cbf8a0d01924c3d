//! The client's side of the wire: connections with requests under way, and what is built on them.
//!
//! Reading order: [`network`] is the one thread of a client on which all of this runs → [`connection`] is one socket
//! with any number of requests under way → [`accumulator`] is the buffer of a producer, whose messages wait in
//! [`lanes`] and leave as a [`batch`].
//!
//! Messages come in through [`pull`]: what is asked and answered is in [`pull_answer`], what is held in [`pull_desk`].
//! [`scan`] reads a range of one queue to its end.
//!
//! Nothing is decided here. Where messages go arrives as data ([`routes`]), and whatever does not go well is handed
//! up whole, to be decided in Python.
#![forbid(unsafe_code)]

mod accumulator;
mod batch;
mod bell;
mod byte_budget;
mod connection;
mod error;
mod frames;
mod ids;
mod lanes;
mod network;
mod prefetch;
mod pull;
mod pull_answer;
mod routes;
mod scan;

pub use accumulator::{Accumulator, Asks, Crossed, Event, NotTaken, Part, Plain, Put, Reason, SendSettings};
pub use batch::{Batch, Contents, Form, OffsetIds, Outcome, Place, Stored};
pub use bell::Bell;
pub use error::ClientError;
pub use frames::{Reply, Request};
pub use ids::{IdTail, UniqueIds};
pub use lanes::LaneLimits;
pub use network::{Network, NetworkSettings};
pub use prefetch::{PullEvent, PullLimits, PullPlace, PullPortion};
pub use pull::PullStream;
pub use pull_answer::PullWanted;
pub use routes::Route;
pub use scan::{Scan, ScanEnd, ScanLimits, ScanPortion};
