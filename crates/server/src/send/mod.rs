//! Storing messages: the send requests, and copies of stored messages.

pub(crate) mod answer;
pub(crate) mod copy;
pub(crate) mod handler;
pub(crate) mod properties;
