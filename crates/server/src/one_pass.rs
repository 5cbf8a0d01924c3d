//! Whatever reads or rewrites what a stranger sends does so in one pass: twice the bytes cost twice the work.
//!
//! Each piece of work runs over n and over 2n bytes of the worst kind, and their processor times are compared with each
//! other, never with a clock. A loop inside a loop takes four times as long for twice the bytes.

use std::hint::black_box;
use std::time::Duration;

use metaq_store::Program;
use metaq_store::expression::Operation;
use metaq_wire::properties::{entries, find, tag_code_of};
use metaq_wire::{Encoding, Header, PullHeader, QueueHeader, SendHeader, batch_records};
use rustix::time::{ClockId, clock_gettime};

use crate::send::copy::changed_properties;
use crate::send::keys::Keys;
use crate::send::rewrite::own_properties;
use crate::send::{properties, validate};

const BYTES: usize = 16 * 1024;
/// Runs of the same work, of which the best counts: another process may take the cache away in each of them.
const RUNS: usize = 7;
const TRIES: usize = 5;

/// The processor time of this thread for the work, at its best.
fn cost(work: &dyn Fn(&[u8]), bytes: &[u8]) -> Duration {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let run = |_| {
        let begin = now();
        work(black_box(bytes));
        now() - begin
    };
    (0..RUNS).map(run).min().unwrap_or_default()
}

/// Repeats the part as often as it fits into the bytes.
fn repeated(part: &str, bytes: usize) -> Vec<u8> {
    part.repeat(bytes / part.len()).into_bytes()
}

fn assert_linear(what: &str, make: &dyn Fn(usize) -> Vec<u8>, work: &dyn Fn(&[u8])) {
    let (once, twice) = (make(BYTES), make(2 * BYTES));
    let ratio = || cost(work, &twice).as_secs_f64() / cost(work, &once).as_secs_f64().max(1e-9);
    let best = (0..TRIES).map(|_| ratio()).find(|ratio| *ratio < 3.0);
    assert!(best.is_some(), "{what}: twice the bytes cost {:.1} times the work", ratio());
}

fn rewrite(bytes: &[u8]) {
    let marks = properties::scan(bytes);
    black_box(Keys::default().add(&marks, bytes.len(), 64).is_ok());
    black_box(own_properties(bytes, &marks));
}

#[test]
fn properties_are_read_and_rewritten_in_one_pass() {
    for entry in [
        "POP_CK\u{1}x\u{2}",
        "METAQ_HALF_BEFORE\u{1}1\u{2}METAQ_HALF_FIRST\u{1}1\u{2}TRAN_PREPARED_QUEUE_OFFSET\u{1}1\u{2}",
        "TRANSACTION_CHECK_TIMES\u{1}1\u{2}TRAN_MSG\u{1}true\u{2}",
        "DELAY\u{1}1\u{2}TIMER_DELAY_SEC\u{1}1\u{2}TIMER_DELAY_MS\u{1}1\u{2}TIMER_DELIVER_MS\u{1}1\u{2}",
        "_SYS_MSG_PRIORITY_\u{1}1\u{2}DELAY\u{1}1\u{2}",
        "KEYS\u{1}k k k k\u{2}UNIQ_KEY\u{1}u\u{2}TAGS\u{1}t\u{2}",
        "\u{2}",
        "a\u{1}",
    ] {
        let make = |bytes: usize| repeated(entry, bytes);
        assert_linear(&format!("rewriting {entry:?}"), &make, &rewrite);
        assert_linear(&format!("copying {entry:?}"), &make, &|bytes| {
            black_box(changed_properties(bytes, &["POP_CK", "DELAY"], &[("REAL_TOPIC", "t")]));
        });
        assert_linear(&format!("searching {entry:?}"), &make, &|bytes| {
            black_box((entries(bytes).count(), find(bytes, "TAGS"), tag_code_of(bytes)));
        });
    }
    let keys = |bytes: usize| [b"KEYS\x01", &repeated("k ", bytes)[..]].concat();
    assert_linear("counting keys", &keys, &rewrite);
}

#[test]
fn headers_are_read_in_one_pass() {
    let scan = |encoding: Encoding, bytes: &[u8]| {
        if let Ok(header) = black_box(Header::parse(encoding, bytes)) {
            black_box((header.fields().count(), SendHeader::scan(&header).is_ok()));
            black_box((PullHeader::scan(&header).is_ok(), QueueHeader::scan(&header).is_ok()));
        }
    };
    for field in [
        r#""i":"POP_CK\u0001x\u0002","#,
        r#""n":null,"#,
        r#""n":[{"a":[1,2]}],"#,
        "\"\\ud83d\\ude00\":1,   ",
        r#""b":"t","e":"1","a":"g","#,
    ] {
        for (before, after) in [(r#"{"code":310,"extFields":{"b":"t","#, r#""z":"1"}}"#), ("{", r#""z":1}"#)]
        {
            let make =
                |bytes: usize| [before.as_bytes(), &repeated(field, bytes)[..], after.as_bytes()].concat();
            assert!(Header::parse(Encoding::Json, &make(BYTES)).is_ok(), "{field}");
            assert_linear(&format!("{before}{field}"), &make, &|bytes| scan(Encoding::Json, bytes));
        }
    }
    for field in ["\0\u{1}i\0\0\0\u{1}p", "\0\0\0\0\0\0", "\0\u{1}b\0\0\0\u{1}t\0\u{1}e\0\0\0\u{1}1"] {
        let make = |bytes: usize| {
            let fields = repeated(field, bytes);
            let length = (fields.len() as i32).to_be_bytes();
            [&[1, 0x36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &length, &fields].concat()
        };
        assert!(Header::parse(Encoding::Binary, &make(BYTES)).is_ok(), "{field:?}");
        assert_linear(&format!("{field:?}"), &make, &|bytes| scan(Encoding::Binary, bytes));
    }
}

#[test]
fn batches_are_read_in_one_pass() {
    let part = "\0\0\0\u{1b}\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\u{1}b\0\u{4}a\u{1}b\u{2}";
    let make = |bytes: usize| repeated(part, bytes);
    let header = SendHeader::default();
    assert!(validate::batch(&header, &make(BYTES)).is_ok());
    assert_linear("reading a batch", &make, &|bytes| {
        for part in batch_records(bytes).flatten() {
            black_box(properties::scan(part.properties));
        }
        black_box(validate::batch(&header, bytes).is_ok());
    });
}

#[test]
fn filters_examine_properties_in_one_pass() {
    let property = |name: &str| Operation::Property(name.to_owned());
    let mut operations = vec![property("a"), Operation::Contains("xy".to_owned())];
    for number in 0..40 {
        operations.extend([property(&format!("p{number}")), property("a"), Operation::Equal, Operation::Or]);
    }
    let Ok(program) = Program::build(operations) else { panic!("the program is valid") };
    for entry in ["a\u{1}x\u{2}", "p7\u{1}x\u{2}p8\u{1}y\u{2}", "other\u{1}x\u{2}"] {
        let make = |bytes: usize| repeated(entry, bytes);
        assert_linear(&format!("filtering {entry:?}"), &make, &|bytes| {
            black_box(program.matches(bytes));
        });
    }
    let long = |bytes: usize| [b"a\x01", &repeated("x", bytes)[..]].concat();
    assert_linear("filtering a long value", &long, &|bytes| {
        black_box(program.matches(bytes));
    });
}
