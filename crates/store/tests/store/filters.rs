//! Pulls with a filter expression: their results, their limits, and the effect of damaged records.

use std::sync::Arc;

use metaq_store::expression::{ExpressionError, Operation, SEARCHES_MAX};
use metaq_store::{Bounds, Filter, GetStatus, Program, StoreSettings};
use metaq_wire::Record;

use crate::support::*;

fn color_is(color: &str) -> Filter {
    let operations =
        vec![Operation::Property("color".into()), Operation::Text(color.into()), Operation::Equal];
    Filter::Expression(Arc::new(Program::build(operations).unwrap()))
}

#[test]
fn expressions_filter_and_the_scan_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&small(directory.path()));
    for number in 0..2_000 {
        let properties = if number % 1_000 == 999 { "color\u{1}red\u{2}" } else { "color\u{1}green\u{2}" };
        store.append(&record("t", 0, number.to_string().as_bytes(), properties)).unwrap();
    }
    confirm(&store, store.end_offset());
    let get = |at, filter: &Filter| store.get("t", 0, at, 32, 1 << 20, filter);
    let got = get(0, &color_is("red"));
    assert_eq!((got.status, got.next_offset), (GetStatus::NoMatch, 800));
    let got = get(800, &color_is("red"));
    assert_eq!((got.status, got.count, got.next_offset), (GetStatus::Found, 1, 1_600));
    assert_eq!(Record::decode(&got.slices[0]).unwrap().body, b"999");
    let got = get(1_600, &color_is("blue"));
    assert_eq!((got.status, got.next_offset, got.max_offset), (GetStatus::NoMatch, 2_000, 2_000));
    let got = get(0, &color_is("green"));
    assert_eq!((got.count, got.next_offset), (32, 32));
    let got = store.get("t", 0, 990, 32, 300, &color_is("green"));
    assert!(got.count < 9 && got.bytes <= 300, "bounded in bytes as well");
}

#[test]
fn a_damaged_record_is_served_to_no_filter() {
    let directory = tempfile::tempdir().unwrap();
    let settings = small(directory.path());
    let store = open(&settings);
    let mut places = Vec::new();
    for color in ["red", "red", "red"] {
        let properties = format!("color\u{1}{color}\u{2}");
        places.push(store.append(&record("t", 0, b"body", &properties)).unwrap().physical_offset);
    }
    store.dispatch();
    let file = std::fs::read_dir(directory.path().join("commitlog")).unwrap().next().unwrap().unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    let body_at =
        places[1] as usize + bytes[places[1] as usize..].windows(4).position(|at| at == b"body").unwrap();
    flip(&file.path(), body_at as u64, 1);
    let got = store.get("t", 0, 0, 32, 1 << 20, &color_is("red"));
    assert_eq!((got.status, got.count, got.next_offset), (GetStatus::Found, 2, 3));
    let got = store.get("t", 0, 0, 32, 1 << 20, &color_is("green"));
    assert_eq!((got.status, got.count, got.next_offset), (GetStatus::NoMatch, 0, 3));
}

/// `color = 'red'`, after a number of searches in the property `big` that find nothing.
fn red_after_searches(searches: usize) -> Vec<Operation> {
    let mut operations =
        vec![Operation::Property("color".into()), Operation::Text("red".into()), Operation::Equal];
    for number in 0..searches {
        operations.extend([
            Operation::Property("big".into()),
            Operation::Contains(format!("needle{number}")),
            Operation::Or,
        ]);
    }
    operations
}

#[test]
fn pulls_with_a_costly_filter_go_on_in_steps_and_skip_nothing() {
    const MESSAGES: i64 = 100;
    let directory = tempfile::tempdir().unwrap();
    let store = open(&StoreSettings { commit_log_file_bytes: 1 << 20, ..small(directory.path()) });
    let big = "x".repeat(5_000);
    let mut longest = String::new();
    for number in 0..MESSAGES {
        let color = if number % 7 == 3 { "red" } else { "blue" };
        let properties = format!("color\u{1}{color}\u{2}big\u{1}{big}\u{2}");
        store.append(&record("t", 0, number.to_string().as_bytes(), &properties)).unwrap();
        if properties.len() > longest.len() {
            longest = properties;
        }
    }
    confirm(&store, store.end_offset());
    let program = Arc::new(Program::build(red_after_searches(40)).unwrap());
    let one_bytes = program.examined_bytes(longest.as_bytes());
    assert!(one_bytes > 41 * 5_000, "every search counts the whole property");
    let filter = Filter::Expression(program);
    // At most six messages per pull; one message per pull if even one is too many.
    for (examined_bytes_max, pulls_max) in [(6 * one_bytes, 17), (1, 100)] {
        let bounds = Bounds { count_max: 32, bytes_max: 1 << 20, examined_bytes_max };
        let (mut at, mut pulls, mut found) = (0, 0, Vec::new());
        while at < MESSAGES {
            let got = store.get_within("t", 0, at, bounds, &filter);
            assert!(got.next_offset > at, "every pull makes progress");
            assert!(got.examined_bytes <= examined_bytes_max.max(one_bytes));
            assert_eq!(got.status == GetStatus::Found, got.count > 0);
            for slice in &got.slices {
                let mut rest = &slice[..];
                while let Ok(record) = Record::decode(rest) {
                    found.push(record.queue_offset);
                    rest = &rest[record.size..];
                }
            }
            (at, pulls) = (got.next_offset, pulls + 1);
        }
        assert!(pulls <= pulls_max, "{pulls} pulls");
        assert_eq!(found, (0..MESSAGES).filter(|number| number % 7 == 3).collect::<Vec<_>>());
    }
    let nothing = Bounds { count_max: 32, bytes_max: 1 << 20, examined_bytes_max: 0 };
    let got = store.get_within("t", 0, 5, nothing, &filter);
    assert_eq!((got.status, got.next_offset, got.examined_bytes), (GetStatus::NoMatch, 5, 0));
    let got = store.get_within("t", 0, MESSAGES, nothing, &filter);
    assert_eq!(got.status, GetStatus::AtEnd, "there is nothing to examine");
}

#[test]
fn an_expression_has_a_limit_of_searches() {
    assert!(Program::build(red_after_searches(SEARCHES_MAX)).is_ok());
    let error = Program::build(red_after_searches(SEARCHES_MAX + 1)).unwrap_err();
    assert_eq!(error, ExpressionError::TooManySearches { count: SEARCHES_MAX + 1 });
    assert!(error.to_string().contains("129 searches with CONTAINS, the limit is 128"));
}

#[test]
fn many_tags_are_found_like_a_few() {
    let odd = Filter::Tags((0..20_000).rev().filter(|code| code % 2 == 1).collect::<Vec<i64>>().into());
    assert!((0..20_000).all(|code| odd.matches(code) == (code % 2 == 1)));
    let few = Filter::Tags(vec![7, 3, 7].into());
    assert!((0..10).all(|code| few.matches(code) == (code == 3 || code == 7)));
    assert!(!Filter::Tags(Vec::new().into()).matches(0));
}
