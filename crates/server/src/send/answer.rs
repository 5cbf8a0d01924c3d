//! The answer to a send: where the message went, and under which id.

use std::borrow::Cow;

use metaq_wire::{FrameEncoder, MessageIds};

/// The broker that stored a message, as the answers to sends name it.
pub struct Origin {
    pub region: String,
    /// The text of its records' ids, ready but for the offset.
    pub message_ids: MessageIds,
}

/// The physical offsets of the messages of one request.
pub enum Stored {
    At(i64),
    /// The messages of a batch, one by one.
    AllAt(Vec<i64>),
}

pub struct SendAnswer<'a> {
    pub physical_offset: Stored,
    pub queue_id: i32,
    /// The first message's.
    pub queue_offset: i64,
    /// Empty for a message without a key of its own, and for a batch.
    pub transaction_id: Cow<'a, str>,
    pub recall_handle: Option<String>,
}

impl SendAnswer<'_> {
    pub fn into_owned(self) -> SendAnswer<'static> {
        SendAnswer { transaction_id: Cow::Owned(self.transaction_id.into_owned()), ..self }
    }

    pub fn encode(&self, origin: &Origin, frame: &mut FrameEncoder<'_>) {
        match &self.physical_offset {
            Stored::At(physical_offset) => {
                let mut ids = origin.message_ids;
                frame.field("msgId", ids.at(*physical_offset));
            }
            Stored::AllAt(physical_offsets) => {
                frame.field("msgId", &origin.joined_ids(physical_offsets));
            }
        }
        frame.field_i64("queueId", i64::from(self.queue_id));
        frame.field_i64("queueOffset", self.queue_offset);
        if !self.transaction_id.is_empty() {
            frame.field("transactionId", &self.transaction_id);
        }
        if let Some(handle) = &self.recall_handle {
            frame.field("recallHandle", handle);
        }
        frame.field("MSG_REGION", &origin.region);
        frame.field("TRACE_ON", "true");
    }
}

impl Origin {
    fn joined_ids(&self, physical_offsets: &[i64]) -> String {
        let mut ids = self.message_ids;
        let mut text = Vec::with_capacity(physical_offsets.len() * 33);
        for physical_offset in physical_offsets {
            text.extend_from_slice(ids.bytes_at(*physical_offset));
            text.push(b',');
        }
        text.pop();
        String::from_utf8(text).unwrap_or_default()
    }
}
