//! Compares the encodings: what one writes, both read.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::encode::FrameEncoder;
use crate::frame::{FRAME_BYTES_MAX, next_frame};
use proptest::prelude::*;

fn any_encoding() -> impl Strategy<Value = Encoding> {
    prop_oneof![Just(Encoding::Json), Just(Encoding::Binary)]
}

proptest! {
    #[test]
    fn round_trip(
        encoding in any_encoding(), code in 0i32..3000, opaque: i32, flag: i32,
        remark in prop::option::of(".{1,20}"),
        // No empty values: the binary encoding reads them as null.
        written in prop::collection::vec(("\\PC{1,8}", "(?s).{1,30}"), 0..30),
        body in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut out = b"before".to_vec();
        let mut encoder = FrameEncoder::request(&mut out, encoding, code, opaque, flag);
        if let Some(remark) = &remark {
            encoder.remark(remark);
        }
        for (name, value) in &written {
            encoder.field(name, value);
        }
        let size = encoder.finish(body.len()).unwrap();
        out.extend_from_slice(&body);
        prop_assert_eq!(out.len(), 6 + size);

        let frame = next_frame(&out[6..], FRAME_BYTES_MAX).unwrap().unwrap();
        prop_assert_eq!((frame.encoding, frame.size, frame.body), (encoding, size, &body[..]));
        let header = Header::parse(encoding, frame.header).unwrap();
        prop_assert_eq!((header.code, header.opaque, header.flag), (code, opaque, flag));
        prop_assert_eq!((header.language_name(), header.version), ("JAVA", 513));
        prop_assert_eq!(header.remark.as_deref(), remark.as_deref());
        let read: Vec<(String, String)> = header
            .fields()
            .map(|field| field.map(|(name, value)| (name.into_owned(), value.into_owned())))
            .collect::<Result<_, _>>()
            .unwrap();
        prop_assert_eq!(read, written);
    }
}

#[test]
fn flags() {
    for (flag, response, oneway) in [(0, false, false), (1, true, false), (2, false, true), (3, true, true)] {
        let text = format!(r#"{{"flag":{flag}}}"#);
        let header = Header::parse(Encoding::Json, text.as_bytes()).unwrap();
        assert_eq!((header.is_response(), header.is_oneway()), (response, oneway));
    }
}
