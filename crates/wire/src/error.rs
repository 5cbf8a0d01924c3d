//! Errors of the codec.

/// Why bytes cannot be decoded, or a frame cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("frame of {length} bytes is longer than the limit of {limit}")]
    FrameTooLong { length: usize, limit: usize },
    #[error("header of {length} bytes is longer than the limit of {limit}")]
    HeaderTooLong { length: usize, limit: usize },
    #[error("header has more than {0} fields, the limit")]
    TooManyFields(usize),
    #[error("header does not fit into its frame")]
    HeaderPastFrame,
    #[error("frame length is negative")]
    NegativeLength,
    #[error("bad header: {0}")]
    BadHeader(&'static str),
    #[error("unknown header encoding {0}")]
    BadEncoding(u8),
    #[error("bad record: {0}")]
    BadRecord(&'static str),
    #[error("bad message batch: {0}")]
    BadBatch(&'static str),
    #[error("header field {0} is missing")]
    MissingField(&'static str),
    #[error("header field {name} has a value of the wrong kind")]
    BadField { name: &'static str },
}

#[cfg(test)]
mod tests {
    use super::WireError;

    #[test]
    fn messages_name_the_culprit() {
        assert_eq!(WireError::MissingField("topic").to_string(), "header field topic is missing");
        assert_eq!(
            WireError::FrameTooLong { length: 17, limit: 16 }.to_string(),
            "frame of 17 bytes is longer than the limit of 16"
        );
    }
}
