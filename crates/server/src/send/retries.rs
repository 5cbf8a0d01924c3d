//! The rule by which a message that failed too often goes to the dead letters.

use crate::policy::Snapshot;

impl Snapshot {
    /// Whether a message that the group failed `reconsume_times` times already goes to its dead letters instead of its
    /// retry topic. A client may bring its own limit. None if there is no such limit and the group is unknown.
    pub fn retries_exhausted(
        &self,
        group: &str,
        reconsume_times: i32,
        times_max: Option<i32>,
    ) -> Option<bool> {
        let times_max = match times_max {
            Some(times_max) => times_max,
            None => self.group(group)?.retry_times_max,
        };
        Some(reconsume_times >= times_max)
    }
}
