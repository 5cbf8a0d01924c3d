pub(crate) mod connection;
pub(crate) mod event_fd;
pub(crate) mod network;
pub(crate) mod request;
