//! A scan whose records come out as batches of columns: read ahead by the network thread, laid out by the caller's.

use std::collections::VecDeque;
use std::time::Instant;

use metaq_wire::{Record, WireError};
use parking_lot::Mutex;

use crate::consume::columns::{Column, ColumnBuffers, ColumnsBuilder, RowSource};
use crate::consume::scan::{Scan, ScanChunk, ScanEnd};

/// A batch reports at most this many bodies that could not be decompressed.
const UNREADABLE_MAX: usize = 100;

/// When a batch is full; its last row may pass `bytes_max`.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    pub rows_max: usize,
    /// Bytes of all values without a fixed width, with bodies decompressed.
    pub bytes_max: usize,
}

/// Rows of a scan as columns.
#[derive(Debug, PartialEq, Eq)]
pub struct ColumnBatch {
    pub rows: usize,
    /// Every message from here
    pub from_offset: i64,
    /// up to here was covered. Messages without a row were not wanted.
    pub to_offset: i64,
    /// Queue offsets of rows whose body is null because it could not be decompressed, and why.
    pub unreadable: Vec<(i64, String)>,
    pub columns: Vec<ColumnBuffers>,
}

pub struct ColumnScan {
    scan: Scan,
    source: RowSource,
    columns: Vec<Column>,
    limits: BatchLimits,
    state: Mutex<State>,
}

struct State {
    answers: VecDeque<Answer>,
    /// Rows in `answers` that are not delivered yet.
    rows: usize,
    end: Option<ScanEnd>,
    next_offset: i64,
}

/// An answer of the broker, some rows of which may be delivered already.
struct Answer {
    chunk: ScanChunk,
    delivered: usize,
}

impl ColumnScan {
    /// `from_offset` is where `scan` begins.
    pub fn new(
        scan: Scan,
        from_offset: i64,
        source: RowSource,
        columns: Vec<Column>,
        limits: BatchLimits,
    ) -> Self {
        let limits = BatchLimits { rows_max: limits.rows_max.max(1), bytes_max: limits.bytes_max.max(1) };
        let state = State { answers: VecDeque::new(), rows: 0, end: None, next_offset: from_offset };
        ColumnScan { scan, source, columns, limits, state: Mutex::new(state) }
    }

    /// Waits for a full batch or the end of the scan; `true` if [`ColumnScan::take`] should be called now. At the
    /// deadline, `takes_partial` decides whether a batch that is not full counts.
    pub fn wait(&self, deadline: Instant, takes_partial: bool) -> bool {
        let mut state = self.state.lock();
        loop {
            let is_enough = state.rows >= self.limits.rows_max || state.end.is_some();
            if is_enough || state.bytes() >= self.limits.bytes_max {
                return true;
            }
            let count = self.limits.rows_max - state.rows;
            let (chunks, end) = self.scan.take_until(count, self.limits.bytes_max, deadline);
            let is_idle = chunks.is_empty() && end.is_none();
            for chunk in chunks {
                state.rows += chunk.positions.len();
                state.answers.push_back(Answer { chunk, delivered: 0 });
            }
            state.end = end;
            if is_idle || Instant::now() >= deadline {
                return takes_partial && !state.answers.is_empty() || state.end.is_some();
            }
        }
    }

    /// Lays out the next batch. `None` if there is nothing to report; with the last rows comes the reason why no more
    /// follow.
    pub fn take(&self) -> Result<(Option<ColumnBatch>, Option<ScanEnd>), WireError> {
        let mut state = self.state.lock();
        let batch = self.next_batch(&mut state)?;
        let end = if state.answers.is_empty() { state.end.clone() } else { None };
        Ok((batch, end))
    }

    /// Gives up the rest. You may call it twice.
    pub fn close(&self) {
        self.scan.close();
    }

    fn next_batch(&self, state: &mut State) -> Result<Option<ColumnBatch>, WireError> {
        let from_offset = state.next_offset;
        let mut builder = ColumnsBuilder::new(&self.source, &self.columns);
        let mut unreadable = Vec::new();
        while builder.rows() < self.limits.rows_max && builder.bytes() < self.limits.bytes_max {
            let Some(first) = state.answers.front_mut() else { break };
            let Some(at) = first.chunk.positions.get(first.delivered) else {
                state.next_offset = first.chunk.covered.end;
                state.answers.pop_front();
                continue;
            };
            let bytes = first.chunk.body.get(*at as usize..).unwrap_or_default();
            // The record was whole when it arrived.
            let record =
                Record::decode(bytes).map_err(|_| WireError::BadRecord("changed while it was held"))?;
            first.delivered += 1;
            let outcome = builder.push(&record);
            let queue_offset = record.queue_offset;
            state.rows = state.rows.saturating_sub(1);
            state.next_offset = queue_offset + 1;
            if let Some(error) = outcome.err().filter(|_| unreadable.len() < UNREADABLE_MAX) {
                unreadable.push((queue_offset, error.to_string()));
            }
        }
        state.drop_delivered();
        if builder.rows() == 0 && state.next_offset == from_offset {
            return Ok(None);
        }
        Ok(Some(ColumnBatch {
            rows: builder.rows(),
            from_offset,
            to_offset: state.next_offset,
            unreadable,
            columns: builder.finish(),
        }))
    }
}

impl State {
    fn bytes(&self) -> usize {
        self.answers.iter().map(|answer| answer.chunk.body.len()).sum()
    }

    /// Drops answers whose rows are all delivered; what they covered beyond their rows counts as looked at.
    fn drop_delivered(&mut self) {
        while let Some(first) = self.answers.front() {
            if first.delivered < first.chunk.positions.len() {
                break;
            }
            self.next_offset = first.chunk.covered.end;
            self.answers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
