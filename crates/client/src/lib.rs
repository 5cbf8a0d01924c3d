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

mod compression;
mod consume;
mod error;
mod net;
mod produce;

pub use compression::{CompressionError, CompressionFormat, compress, decompress, decompress_body};
pub use consume::column_scan::{BatchLimits, ColumnBatch, ColumnScan};
pub use consume::columns::{Column, ColumnBuffers, RowSource};
pub use consume::in_flight::InFlight;
pub use consume::prefetch::{PullEvent, PullLimits, PullPlace, PullPortion};
pub use consume::pull::PullStream;
pub use consume::pull_answer::PullWanted;
pub use consume::records;
pub use consume::scan::{Scan, ScanEnd, ScanLimits, ScanPortion};
pub use error::ClientError;
pub use net::event_fd::Bell;
pub use net::network::{Network, NetworkSettings};
pub use net::request::{Reply, Request};
pub use produce::accumulator::{
    Accumulator, Asks, Crossed, Event, NotTaken, Part, Plain, Put, Reason, SendSettings,
};
pub use produce::batch::{Batch, Contents, Form, OffsetIds, Outcome, Place, Stored};
pub use produce::ids::{IdTail, UniqueIds};
pub use produce::lanes::LaneLimits;
pub use produce::outgoing::{self, CheckedMessage, PlainLimits, PlainMessage};
pub use produce::routes::Route;
pub use produce::rows::{MapColumn, NumberColumn, RowLimits, RowWriter, Rows, RowsPut, VariableColumn};
