//! Rate limits of topics and groups, and the requests that wait for them.
//!
//! `rate` is the token bucket, `flow` holds acknowledgements back until their topic's limit has room, `paced` is the table
//! of pulls that wait for their group's limit (`pull::pacing` serves them). A limit hangs on its topic or group in
//! `policy`, so it lives as long as its rates stay the same.
//!
//! Called by `send` and `pull` for limited topics and groups alone: a request without a limit pays one look at an Option.

pub(crate) mod flow;
pub(crate) mod paced;
pub(crate) mod rate;
