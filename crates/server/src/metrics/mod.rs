//! Metrics of the hot path for Prometheus: messages in and out by topic and group, and how long requests take.
//!
//! [`traffic`] and [`latency`] are counted per message or request, without a lock or an allocation: a topic and a group
//! carry their counters in the policy, where the handlers have them at hand. [`scrape`] adds what the store and the offsets
//! know, and writes all of it in Prometheus' text format ([`text`]). Python serves the page, and adds the series that are
//! few. [`slow_requests`] keeps the requests that took long, for the log.

pub mod latency;
pub mod scrape;
pub mod slow_requests;
mod text;
pub mod traffic;
