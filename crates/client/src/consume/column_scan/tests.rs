//! Ranges that come out as batches: every row once, in order, and the offsets between them accounted for.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::consume::pull_answer::PullQuery;
use crate::consume::scan::ScanLimits;
use crate::consume::testing::TestQueue;
use crate::net::network::{Network, NetworkSettings};

const SCAN_LIMITS: ScanLimits = ScanLimits {
    held_bytes_max: 4 << 10,
    pulls_in_flight_max: 6,
    pull_count_max: 16,
    pull_bytes_max: 1 << 18,
    pull_timeout: Duration::from_secs(20),
};

fn begin(queue: TestQueue, range: Range<i64>, limits: BatchLimits) -> (Arc<Network>, ColumnScan) {
    let network = Network::start(NetworkSettings::TEST).unwrap();
    let from_offset = range.start;
    let scan = Scan::begin(&network, PullQuery::default(), &queue.serve(), range, SCAN_LIMITS);
    let columns = vec![Column::QueueOffset, Column::Body];
    (network, ColumnScan::new(scan, from_offset, RowSource::default(), columns, limits))
}

fn offsets(batch: &ColumnBatch) -> Vec<i64> {
    let values = batch.columns[0].buffers[1].as_ref().unwrap();
    values.chunks_exact(8).map(|eight| i64::from_le_bytes(*eight.first_chunk().unwrap())).collect()
}

/// All batches of a scan, and why it ended.
fn read(scan: &ColumnScan) -> (Vec<ColumnBatch>, ScanEnd) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut batches = Vec::new();
    loop {
        assert!(scan.wait(deadline, true), "nothing came in time");
        let (batch, end) = scan.take().unwrap();
        batches.extend(batch);
        if let Some(end) = end {
            return (batches, end);
        }
    }
}

const QUEUE: TestQueue = TestQueue { first: 0, end: 100, count_max: 1000, scan: 0, every: 1 };

#[test]
fn a_range_that_the_queue_does_not_hold_ends_with_the_reason() {
    let limits = BatchLimits { rows_max: 50, bytes_max: 1 << 20 };
    let (_network, scan) = begin(QUEUE, 90..120, limits);
    let (batches, end) = read(&scan);
    assert_eq!(batches.iter().flat_map(offsets).collect::<Vec<_>>(), (90..100).collect::<Vec<_>>());
    assert_eq!(end, ScanEnd::Stalled { queue_offset: 100 });
    scan.close();
    assert!(scan.wait(Instant::now(), false), "the end stays known");
}

#[test]
fn no_batch_has_more_bytes_than_it_may() {
    let (_network, scan) = begin(QUEUE, 0..100, BatchLimits { rows_max: 1000, bytes_max: 10 });
    let (batches, end) = read(&scan);
    // Every body has four bytes, and the last row of a batch may pass the limit.
    assert!(batches.iter().all(|batch| (1..=3).contains(&batch.rows)), "{batches:?}");
    assert_eq!((batches.iter().map(|batch| batch.rows).sum::<usize>(), end), (100, ScanEnd::Done));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_offset_of_the_range_is_covered_once(
        from in 0i64..50, length in 0i64..300, rows_max in 0..60_usize,
        count_max in 1i64..40, wide in prop_oneof![Just(0i64), 0i64..100], every in 1i64..9,
    ) {
        let queue = TestQueue { first: 0, end: from + length + 20, count_max, scan: wide, every };
        let limits = BatchLimits { rows_max, bytes_max: 1 << 20 };
        let (_network, scan) = begin(queue, from..from + length, limits);
        let (batches, end) = read(&scan);
        let expected: Vec<i64> = (from..from + length).filter(|offset| offset % every == 0).collect();
        prop_assert_eq!(batches.iter().flat_map(offsets).collect::<Vec<_>>(), expected);
        prop_assert_eq!(end, ScanEnd::Done);
        let mut next = from;
        for batch in &batches {
            prop_assert!(batch.rows <= rows_max.max(1) && batch.from_offset == next);
            prop_assert_eq!(batch.rows, batch.columns[0].buffers[1].as_ref().unwrap().len() / 8);
            next = batch.to_offset;
        }
        prop_assert_eq!(next, from + length);
    }
}
