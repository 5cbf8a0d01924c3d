//! Sockets: the listener, its connections, and the way of a frame to its handler or up to Python.

pub(crate) mod answers;
pub(crate) mod connection;
pub(crate) mod counts;
pub(crate) mod crossing;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod peer;
pub(crate) mod route;
