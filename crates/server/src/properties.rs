//! The few properties of an incoming message that decide how it is stored, found in one pass.

/// What a sender's property string says about the message's treatment.
#[derive(Default)]
pub struct Marks<'a> {
    pub unique_key: Option<&'a str>,
    /// The sender does not wait for flush or replicas (`WAIT=false`).
    pub no_wait: bool,
    /// Names of properties whose treatment this broker does not have yet.
    pub unsupported: Option<&'static str>,
    /// The sender's string carries what the broker would add: a message that is sent on.
    pub already_added: bool,
    /// A pop handle must not be stored.
    pub pop_check: bool,
}

/// Layout: `name 0x01 value 0x02` repeated, the last 0x02 optional.
pub fn scan(properties: &str) -> Marks<'_> {
    let mut marks = Marks::default();
    for entry in properties.split('\u{2}') {
        let Some((name, value)) = entry.split_once('\u{1}') else {
            continue;
        };
        match name {
            "UNIQ_KEY" => marks.unique_key = Some(value),
            "WAIT" => marks.no_wait = value == "false",
            "CLUSTER" => marks.already_added = true,
            "POP_CK" => marks.pop_check = true,
            "TRAN_MSG" if value == "true" => marks.unsupported = Some("TRAN_MSG"),
            "DELAY" if value != "0" => marks.unsupported = Some("DELAY"),
            "TIMER_DELAY_SEC" => marks.unsupported = Some("TIMER_DELAY_SEC"),
            "TIMER_DELAY_MS" => marks.unsupported = Some("TIMER_DELAY_MS"),
            "TIMER_DELIVER_MS" => marks.unsupported = Some("TIMER_DELIVER_MS"),
            _ => {}
        }
    }
    marks
}

/// The string without the one property.
pub fn without(properties: &str, name: &str) -> String {
    let kept =
        properties.split('\u{2}').filter(|entry| entry.split_once('\u{1}').is_none_or(|(of, _)| of != name));
    kept.collect::<Vec<_>>().join("\u{2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_wherever_they_stand() {
        let marks = scan("TAGS\u{1}a\u{2}UNIQ_KEY\u{1}K1\u{2}WAIT\u{1}false\u{2}");
        assert_eq!(marks.unique_key, Some("K1"));
        assert!(marks.no_wait && !marks.already_added && marks.unsupported.is_none());
        assert_eq!(scan("DELAY\u{1}3").unsupported, Some("DELAY"));
        assert_eq!(scan("WAIT\u{1}true").unsupported, None);
        assert!(scan("broken\u{2}\u{2}\u{1}x").unique_key.is_none());
    }

    #[test]
    fn a_property_is_taken_out_whole() {
        assert_eq!(without("A\u{1}1\u{2}POP_CK\u{1}x y\u{2}B\u{1}2", "POP_CK"), "A\u{1}1\u{2}B\u{1}2");
    }
}
