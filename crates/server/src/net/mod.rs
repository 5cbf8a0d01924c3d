//! Sockets: the listener, its connections, and the way of a frame to its handler or up to Python.
//!
//! `listener` binds and accepts; `connection` is the task of one socket: it reads everything that is there, handles every
//! whole frame and writes all answers at once. `route` sends a hot request to its room and everything else up to Python
//! through `crossing`. `answers` holds the answers of a connection, those that wait for the store included; `output` is
//! the buffer that one system call writes. `peer` is a connection as other threads see it, with a mailbox for answers
//! that they post; `counts` are its figures. `memory` counts the bytes that are kept for it, and `group_memory` those that are
//! kept for a group; `making_way` knows which connections are closed when they are too many. `newcomers` knows the connections that have sent nothing yet, `crowds` where places are scarce, and
//! `by_network` how many of a kind of places each address has. `held_appends` keeps requests back while the master moves,
//! `relay` passes them on to it.
//!
//! Nothing here knows what a message is. New hot requests get a line in `codes` and an arm in `route`.

pub(crate) mod answers;
pub(crate) mod by_network;
pub(crate) mod connection;
pub(crate) mod counts;
pub(crate) mod crossing;
mod crowds;
pub(crate) mod group_memory;
pub(crate) mod held_appends;
pub(crate) mod listener;
pub(crate) mod making_way;
pub(crate) mod memory;
pub(crate) mod newcomers;
pub(crate) mod output;
pub(crate) mod peer;
pub(crate) mod relay;
pub(crate) mod route;
