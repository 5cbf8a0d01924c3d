//! Pulls that are filtered by a function of the operator's. The function runs in a process that Python manages: a pull
//! waits in line ([`super::function_lines`]) until Python takes it with a batch of candidates, and goes on when the
//! verdicts are there. Nothing here blocks.

use bytes::Bytes;
use metaq_store::{Filter, GetStatus, Got};
use metaq_wire::layout;

use crate::net::answers::Answers;
use crate::pull::Puller;
use crate::pull::handler::Pull;
use crate::pull::held_pulls::Held;

/// Candidates for a function to judge, and the pull that wants them.
pub struct Batch {
    held: Held,
    /// The store's answer without its slices; `records` holds them one by one.
    got: Got,
    pub records: Vec<Bytes>,
    /// Whether other pulls wait for the same function.
    pub more: bool,
}

impl Puller {
    /// Puts a pull in line for its function; returns it if there is no room.
    pub(super) fn line_up(&self, held: Held) -> Result<(), Box<Held>> {
        match &held.pull.filter {
            Filter::Function(call) => {
                let function = call.function.clone();
                self.function_lines.add(&function, held)
            }
            _ => Err(Box::new(held)),
        }
    }

    /// The next batch for a function, within these bounds; its first message goes whatever its size. A pull that has no
    /// candidates any more is held on or answered on the way.
    pub fn take_batch(&self, function: &str, messages_max: usize, bytes_max: usize) -> Option<Batch> {
        loop {
            let (held, more) = self.function_lines.take(function)?;
            if held.peer.is_closing() {
                continue;
            }
            let Some(held) = self.redirect(held) else { continue };
            let pull = &held.pull;
            let mut got = self.store.get(
                &pull.topic,
                pull.queue_id,
                pull.queue_offset,
                messages_max,
                bytes_max,
                &pull.filter,
            );
            if got.status != GetStatus::Found {
                got = self.or_wait(pull, got);
            }
            if got.status == GetStatus::Found {
                let records = cut(std::mem::take(&mut got.slices));
                return Some(Batch { held, got, records, more });
            }
            if let Some(still_waiting) = self.wait_on_or_answer(held, got) {
                self.register_or_finish(still_waiting);
            }
        }
    }

    /// Goes on with a batch's pull. `verdicts` are for its first messages, 0 for one that is not wanted. Messages without
    /// a verdict are judged again for the next pull.
    pub fn answer_batch(&self, batch: Batch, verdicts: &[u8]) {
        let got = batch.choose(verdicts);
        let Some(held) = self.redirect(batch.held) else { return };
        self.charge_consumed(&held.pull.group, &got);
        if let Some(still_waiting) = self.wait_on_or_answer(held, got) {
            self.register_or_finish(still_waiting);
        }
    }
}

impl Batch {
    pub fn pull(&self) -> &Pull {
        &self.held.pull
    }

    pub fn call(&self) -> &str {
        match &self.held.pull.filter {
            Filter::Function(call) => &call.text,
            _ => "",
        }
    }

    pub fn refuse(self, code: i32, remark: &str) {
        let mut answers = Answers::default();
        answers.add(self.held.pull.encoding, self.held.pull.opaque, code, remark, &[]);
        let _gone = self.held.peer.post(answers);
    }

    /// The messages that the pull gets, and where it continues: after the last message with a verdict, or at the first
    /// wanted one that the answer has no room for.
    fn choose(&self, verdicts: &[u8]) -> Got {
        let (count_max, bytes_max) = (self.held.pull.count_max, self.held.pull.bytes_max);
        let mut chosen = Got { status: GetStatus::NoMatch, count: 0, bytes: 0, ..self.got.clone() };
        for (index, record) in self.records.iter().enumerate() {
            let verdict = verdicts.get(index);
            let is_wanted = verdict.is_some_and(|verdict| *verdict != 0);
            let is_full = chosen.count >= count_max
                || (chosen.count > 0 && chosen.bytes.saturating_add(record.len()) > bytes_max);
            if verdict.is_none() || (is_wanted && is_full) {
                chosen.next_offset = queue_offset(record).unwrap_or(self.held.pull.queue_offset);
                break;
            }
            if is_wanted {
                chosen.count += 1;
                chosen.bytes += record.len();
                chosen.slices.push(record.clone());
                chosen.status = GetStatus::Found;
            }
        }
        chosen
    }
}

pub(super) fn is_function(filter: &Filter) -> bool {
    matches!(filter, Filter::Function(_))
}

/// Whether there are candidates that only the pull's function can judge.
pub(super) fn is_unjudged(pull: &Pull, got: &Got) -> bool {
    is_function(&pull.filter) && got.status == GetStatus::NoMatch
}

/// Removes candidates that no function has judged, and leaves the pull where it was.
pub(super) fn without_candidates(mut got: Got, queue_offset: i64) -> Got {
    if got.status == GetStatus::Found {
        (got.status, got.next_offset) = (GetStatus::NoMatch, queue_offset);
        (got.count, got.bytes) = (0, 0);
        got.slices.clear();
    }
    got
}

/// Cuts slices of whole records into single ones. The store has checked them; a wrong size ends the list.
fn cut(slices: Vec<Bytes>) -> Vec<Bytes> {
    let mut records = Vec::new();
    for mut slice in slices {
        while !slice.is_empty() {
            let size = slice.first_chunk().map_or(0, |size| u32::from_be_bytes(*size) as usize);
            if size == 0 || size > slice.len() {
                return records;
            }
            records.push(slice.split_to(size));
        }
    }
    records
}

fn queue_offset(record: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(*record.get(layout::at::QUEUE_OFFSET..)?.first_chunk()?))
}
