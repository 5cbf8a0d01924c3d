//! The client's data plane: everything that touches each message that a Python client sends or receives.
//!
//! [`net`] runs the connections of a client on one thread. [`produce`] buffers messages and sends them in batches.
//! [`consume`] pulls messages ahead of their readers. [`compression`] packs and unpacks bodies.
//!
//! Rules come in as data: routes, limits, brokers to avoid. If something goes wrong, an event with all details goes to
//! Python, which decides. Nothing here knows Python; `crates/python` turns these types into the classes of `metaq._core`.
//!
//! Reading order: `net/network.rs`, `net/connection.rs`, `produce/accumulator.rs`, `consume/pull.rs`.
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
pub use consume::prefetch::{PullChunk, PullEvent, PullLimits, PullSource};
pub use consume::pull::PullStream;
pub use consume::pull_answer::PullQuery;
pub use consume::records;
pub use consume::scan::{Scan, ScanChunk, ScanEnd, ScanLimits};
pub use error::ClientError;
pub use net::event_fd::EventFd;
pub use net::network::{Network, NetworkSettings};
pub use net::request::{Reply, Request};
pub use produce::accumulator::{
    Accumulator, BatchMessage, Event, HalfBatch, Put, PutError, SendSettings, Unsent, UnsentReason, WhenFull,
};
pub use produce::batch::{Batch, BrokerQueue, Contents, Form, OffsetIds, Outcome, Stored};
pub use produce::ids::{IdTail, UniqueIds};
pub use produce::lanes::LaneLimits;
pub use produce::outgoing::{self, CheckedMessage, PlainLimits, PlainMessage};
pub use produce::routes::Route;
pub use produce::rows::{MapColumn, NumberColumn, RowLimits, RowWriter, Rows, RowsPut, VariableColumn};
