//! Connections to brokers: one network thread per client, one connection per address.
//!
//! [`network`] owns the thread and the connections; [`connection`] multiplexes requests over one socket
//! (`metaq_transport`); [`request`] is what goes in and comes out; [`event_fd`] wakes an event loop of Python.
//!
//! Nothing here knows about messages. [`crate::produce`] and [`crate::consume`] call [`network::Network::call`] from
//! tasks that they spawn on the network thread.

pub(crate) mod connection;
pub(crate) mod event_fd;
pub(crate) mod network;
pub(crate) mod request;
