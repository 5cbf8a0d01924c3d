//! The hot requests, asked over a loopback connection and answered by a whole data plane in this process.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod confirmation;
mod connection;
mod limits;
mod offsets;
mod pull;
mod send;
mod timer;
mod transaction;
