//! The native client against a server that each test scripts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must fail")]

#[path = "../support/mod.rs"]
mod support;

mod accumulator;
mod connection;
