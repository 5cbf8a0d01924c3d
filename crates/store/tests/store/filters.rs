//! Pulls with a filter expression: their results, their limits, and the effect of damaged records.

use std::sync::Arc;

use metaq_store::expression::Operation;
use metaq_store::{Filter, GetStatus, Program};
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
