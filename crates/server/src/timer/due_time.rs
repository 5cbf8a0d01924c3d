//! The time of delivery that a sender asks for: TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS.

use std::sync::{Arc, OnceLock};

use metaq_store::Clock;
use metaq_wire::properties::find;

use crate::codes::response_code;
use crate::net::route::Refusal;
use crate::send::properties::Marks;
use crate::send::rewrite::RETRY_PREFIX;
use crate::settings::TimerSettings;
use crate::timer::recall::encode_handle;

/// The moments that this broker lets messages wait for.
#[derive(Clone)]
pub struct DueTimes {
    clock: Clock,
    delay_ms_max: i64,
    recall_messages: bool,
    recall_by_property: bool,
    /// Signs handles. Without it there are none.
    recall_key: Arc<OnceLock<Vec<u8>>>,
}

impl DueTimes {
    pub fn new(clock: Clock, settings: &TimerSettings) -> Self {
        DueTimes {
            clock,
            delay_ms_max: settings.delay_ms_max,
            recall_messages: settings.recall_messages,
            recall_by_property: settings.recall_by_property,
            recall_key: Arc::default(),
        }
    }

    /// Signs handles with this key from now on; the first key counts.
    pub fn set_recall_key(&self, key: Vec<u8>) {
        let _ = self.recall_key.set(key);
    }

    /// The time of delivery; None if the sender asks for none in the future. A delay level wins over it.
    pub fn due_ms(&self, marks: &Marks<'_>) -> Result<Option<i64>, Refusal> {
        let requested = &marks.requested_time;
        if !requested.is_asked() || marks.delay_level > 0 {
            return Ok(None);
        }
        if requested.recalls.is_some() && !self.recall_messages {
            let remark = "this broker does not let messages be recalled (recall_messages)";
            return Err(Refusal::new(response_code::NO_PERMISSION, remark));
        }
        if requested.recalls.is_some() && !self.recall_by_property {
            let remark = "a property recalls messages without proof that they are the sender's: recall with the \
                          handle of the send, or let the operator set recall_by_property";
            return Err(Refusal::new(response_code::NO_PERMISSION, remark));
        }
        let due_ms = requested.due_ms(self.clock.now_ms(), self.delay_ms_max);
        due_ms.map_err(|remark| Refusal::new(response_code::MESSAGE_ILLEGAL, remark))
    }

    /// The handle by which a message that waits can be recalled. None for retries, for recalls themselves, and for a key
    /// that the handle could not carry.
    pub fn recall_handle(
        &self,
        broker_name: &str,
        topic: &str,
        marks: &Marks<'_>,
        extra: &str,
        due_ms: i64,
    ) -> Option<String> {
        let key = marks.unique_key.or_else(|| find(extra.as_bytes(), "UNIQ_KEY"))?;
        let key = std::str::from_utf8(key).ok()?;
        let is_retry = topic.starts_with(RETRY_PREFIX);
        let is_wanted = self.recall_messages && marks.requested_time.recalls.is_none() && !is_retry;
        if !is_wanted || key.contains(' ') {
            return None;
        }
        Some(encode_handle(self.recall_key.get()?, topic, broker_name, due_ms, key))
    }
}

/// The properties with which a sender asks for a time of delivery.
#[derive(Default, Clone, Copy)]
pub struct RequestedTime<'a> {
    pub delay_s: Option<&'a [u8]>,
    pub delay_ms: Option<&'a [u8]>,
    pub deliver_ms: Option<&'a [u8]>,
    /// The message has waited already.
    pub has_waited: bool,
    /// The message recalls another one, which has this key.
    pub recalls: Option<&'a [u8]>,
}

/// The names of these properties, which are removed if a delay level overrides them.
pub const TIMER_NAMES: [&str; 3] = ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

impl RequestedTime<'_> {
    pub fn is_asked(&self) -> bool {
        self.delay_s.is_some() || self.delay_ms.is_some() || self.deliver_ms.is_some()
    }

    /// The time of delivery; None if the message does not wait any longer. The error names the wrong property.
    pub fn due_ms(&self, now_ms: i64, delay_ms_max: i64) -> Result<Option<i64>, String> {
        if self.has_waited || !self.is_asked() {
            return Ok(None);
        }
        let due_ms = match (self.delay_s, self.delay_ms, self.deliver_ms) {
            (Some(text), _, _) => {
                now_ms.saturating_add(number("TIMER_DELAY_SEC", text)?.saturating_mul(1_000))
            }
            (None, Some(text), _) => now_ms.saturating_add(number("TIMER_DELAY_MS", text)?),
            (None, None, Some(text)) => number("TIMER_DELIVER_MS", text)?,
            (None, None, None) => return Ok(None),
        };
        let left_ms = due_ms.saturating_sub(now_ms);
        if left_ms > delay_ms_max {
            return Err(format!(
                "the message is to wait {left_ms} ms; this broker lets it wait at most {delay_ms_max} ms \
                 (timer_max_delay_s)"
            ));
        }
        if left_ms > 0 {
            return Ok(Some(due_ms));
        }
        match self.recalls {
            Some(_) => {
                Err("a recall must name a time in the future: messages that are due have been delivered"
                    .to_string())
            }
            None => Ok(None),
        }
    }
}

fn number(name: &str, text: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let shown: String = String::from_utf8_lossy(text).chars().take(32).collect();
        format!("property {name} must be a whole number, not {shown:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_750_000_000_000;
    const MAX: i64 = 1_000_000;

    fn due(requested: RequestedTime<'_>) -> Result<Option<i64>, String> {
        requested.due_ms(NOW, MAX)
    }

    #[test]
    fn seconds_win_over_milliseconds_and_those_over_a_point_in_time() {
        let mut requested = RequestedTime { deliver_ms: Some(b"1750000000001"), ..RequestedTime::default() };
        assert_eq!(due(requested), Ok(Some(NOW + 1)));
        requested.delay_ms = Some(b"20");
        assert_eq!(due(requested), Ok(Some(NOW + 20)));
        requested.delay_s = Some(b"3");
        assert_eq!(due(requested), Ok(Some(NOW + 3_000)));
        requested.has_waited = true;
        assert_eq!(due(requested), Ok(None));
        assert_eq!(due(RequestedTime::default()), Ok(None));
    }

    #[test]
    fn what_is_over_is_due_at_once_and_what_is_too_far_is_refused() {
        let delay = |text| RequestedTime { delay_ms: Some(text), ..RequestedTime::default() };
        for past in [&b"0"[..], b"-1", b"-9223372036854775808"] {
            assert_eq!(due(delay(past)), Ok(None));
        }
        assert_eq!(due(delay(b"1000000")), Ok(Some(NOW + MAX)));
        for far in [&b"1000001"[..], b"9223372036854775807"] {
            assert!(due(delay(far)).is_err_and(|remark| remark.contains("timer_max_delay_s")));
        }
        let seconds = RequestedTime { delay_s: Some(b"9223372036854775807"), ..RequestedTime::default() };
        assert!(due(seconds).is_err());
        let recall = RequestedTime { recalls: Some(b"orders+K"), ..delay(b"0") };
        assert!(due(recall).is_err());
    }

    #[test]
    fn what_is_no_number_is_named() {
        for text in [&b""[..], b" 5", b"5.0", b"soon", b"9223372036854775808", b"\xFF"] {
            let requested = RequestedTime { deliver_ms: Some(text), ..RequestedTime::default() };
            assert!(due(requested).is_err_and(|remark| remark.contains("TIMER_DELIVER_MS")), "{text:?}");
        }
    }
}
