//! The data plane over loopback: the hot requests against a whole plane in this process, and replication.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod apache_ha;
mod checksums;
mod confirmation;
mod connection;
mod damage;
mod held_appends;
mod limits;
mod memory;
mod metrics;
mod offsets;
mod pull;
mod relay;
mod replica;
mod replication;
mod send;
mod slow_requests;
mod timer;
mod transaction;
