//! Where the answers of one pass over a connection's frames collect: ready to be written, or parked on the disk.

use std::collections::VecDeque;

use bytes::Bytes;
use metaq_store::Store;
use metaq_wire::{Encoding, FrameEncoder, Header, next_frame};

use crate::code;
use crate::net::output::Output;

/// An answer that may leave once the log is flushed up to `end_offset`.
pub struct Parked {
    pub end_offset: i64,
    pub since_ms: u64,
    /// The whole frame, saying success.
    pub frame: Vec<u8>,
}

/// Something another thread leaves for a connection to write.
#[derive(Default)]
pub struct Parcel {
    pub output: Output,
    pub parked: VecDeque<Parked>,
}

impl Parcel {
    pub fn len(&self) -> usize {
        self.output.len() + self.parked.iter().map(|parked| parked.frame.len()).sum::<usize>()
    }
}

/// The answers of a connection, and what its pass owes the store at its end.
#[derive(Default)]
pub struct Sink {
    pub output: Output,
    parked: VecDeque<Parked>,
    appended: bool,
    ended: bool,
    flush_to: i64,
}

impl Sink {
    /// A response; one too long for a frame becomes an error that says so.
    pub fn respond(
        &mut self,
        encoding: Encoding,
        opaque: i32,
        code: i32,
        remark: Option<&str>,
        fill: impl FnOnce(&mut FrameEncoder<'_>),
        body: Vec<Bytes>,
    ) {
        let mut frame = FrameEncoder::response(self.output.tail(), encoding, code, opaque);
        if let Some(remark) = remark {
            frame.remark(remark);
        }
        fill(&mut frame);
        match frame.finish(body.iter().map(Bytes::len).sum()) {
            Ok(_) => self.output.append(body),
            Err(error) => self.answer(encoding, opaque, code::SYSTEM_ERROR, &error.to_string(), &[]),
        }
    }

    /// A response without body, whose remark is short.
    pub fn answer(
        &mut self,
        encoding: Encoding,
        opaque: i32,
        code: i32,
        remark: &str,
        fields: &[(&str, i64)],
    ) {
        let mut frame = FrameEncoder::response(self.output.tail(), encoding, code, opaque);
        if !remark.is_empty() {
            frame.remark(remark);
        }
        for (name, value) in fields {
            frame.field_i64(name, *value);
        }
        let _never_too_long = frame.finish(0);
    }

    /// Says that this pass put something into the log, so that `settle` dispatches it.
    pub fn note_append(&mut self) {
        self.appended = true;
    }

    /// Says that this pass ended transactions, which is to be written down once for all of them.
    pub fn note_end(&mut self) {
        self.ended = true;
    }

    pub fn take_end(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Keeps an answer back until the log is flushed up to `end_offset`.
    pub fn park(&mut self, end_offset: i64, since_ms: u64, frame: Vec<u8>) {
        self.flush_to = self.flush_to.max(end_offset);
        self.parked.push_back(Parked { end_offset, since_ms, frame });
    }

    /// Once per pass: queue entries for what was appended, and one flush for all that wait.
    pub fn settle(&mut self, store: &Store) {
        if std::mem::take(&mut self.appended) {
            store.dispatch();
        }
        let flush_to = std::mem::take(&mut self.flush_to);
        if flush_to > 0 {
            store.request_confirm(flush_to);
        }
    }

    /// Takes over what another sink's requests owe the store.
    pub fn take_debts(&mut self, from: &mut Sink) {
        self.appended |= std::mem::take(&mut from.appended);
        self.ended |= std::mem::take(&mut from.ended);
        self.flush_to = self.flush_to.max(std::mem::take(&mut from.flush_to));
    }

    pub fn into_parcel(self) -> Parcel {
        Parcel { output: self.output, parked: self.parked }
    }

    pub fn absorb(&mut self, parcel: Parcel) {
        self.output.absorb(parcel.output);
        self.parked.extend(parcel.parked);
    }

    pub fn parked_count(&self) -> usize {
        self.parked.len()
    }

    pub fn parked_since_ms(&self) -> Option<u64> {
        self.parked.front().map(|parked| parked.since_ms)
    }

    /// Lets go of every answer whose record is on the disk.
    pub fn release_flushed(&mut self, flushed_offset: i64) {
        while let Some(parked) = self.parked.front() {
            if parked.end_offset > flushed_offset {
                break;
            }
            self.output.tail().extend_from_slice(&parked.frame);
            self.parked.pop_front();
        }
    }

    /// Answers those who waited too long with the flush time-out, which carries the same fields as success.
    pub fn release_expired(&mut self, older_than_ms: u64) {
        while let Some(parked) = self.parked.front() {
            if parked.since_ms > older_than_ms {
                break;
            }
            self.restate_front(code::FLUSH_DISK_TIMEOUT, "[FLUSH] the disk did not confirm in time", true);
        }
    }

    /// After a failed sync nothing that waits may be called stored.
    pub fn fail_parked(&mut self) {
        while !self.parked.is_empty() {
            self.restate_front(
                code::SYSTEM_ERROR,
                "a sync of the commit log failed: the broker no longer accepts messages; check its disk and restart it",
                false,
            );
        }
    }

    fn restate_front(&mut self, code: i32, remark: &str, keep_fields: bool) {
        let Some(parked) = self.parked.pop_front() else {
            return;
        };
        let Ok(Some(frame)) = next_frame(&parked.frame, usize::MAX) else {
            return;
        };
        let Ok(header) = Header::parse(frame.encoding, frame.header) else {
            return;
        };
        let mut answer = FrameEncoder::response(self.output.tail(), frame.encoding, code, header.opaque);
        answer.remark(remark);
        if keep_fields {
            for (name, value) in header.fields().flatten() {
                answer.field(&name, &value);
            }
        }
        let _never_too_long = answer.finish(0);
    }
}
