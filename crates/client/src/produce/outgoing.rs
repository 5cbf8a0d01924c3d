//! The two ways of a single message into the buffer: plain ones are checked and laid out here, without Python; all
//! others come checked and encoded from Python.

use std::time::Duration;

use bytes::Bytes;
use metaq_wire::layout::PROPERTIES_BYTES_MAX;
use metaq_wire::properties::push;

use crate::produce::accumulator::{Accumulator, BatchMessage, Put, PutError, WhenFull};
use crate::produce::batch::{BrokerQueue, Form, SHARDING_KEY};
use crate::produce::ids::{IdTail, UniqueIds};
use crate::produce::lanes::RECORD_FIXED_BYTES;

const UNIQUE_KEY: &str = "UNIQ_KEY";

/// Brokers accept no batches for retry topics.
#[inline]
pub(crate) fn takes_batches(topic: &str) -> bool {
    !topic.starts_with('%')
}

#[inline]
pub(crate) fn push_unique_id(out: &mut Vec<u8>, ids: &UniqueIds, id: IdTail) {
    out.extend_from_slice(UNIQUE_KEY.as_bytes());
    out.push(1);
    ids.push(id, out);
    out.push(2);
}

/// Whether a text can be the value of a property.
#[inline]
pub fn is_property(text: &str) -> bool {
    !text.is_empty() && !text.bytes().any(|byte| byte == 1 || byte == 2)
}

/// Compares bytes: `str::contains` costs more than it saves on texts as short as tags.
#[inline]
pub(crate) fn has_tag_separator(text: &str) -> bool {
    text.as_bytes().windows(2).any(|pair| pair == b"||")
}

/// Whether a text can be a tag: `||` separates tags in subscriptions.
#[inline]
pub fn is_tag(text: &str) -> bool {
    is_property(text) && !has_tag_separator(text)
}

/// Whether a text is a key of plain ASCII. Python checks all other keys, by its own idea of white space.
#[inline]
pub fn is_ascii_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A message whose parts were found right by [`is_tag`], [`is_ascii_key`] and [`is_property`].
#[derive(Debug, Clone, Copy)]
pub struct PlainMessage<'a> {
    pub topic: &'a str,
    pub body: &'a [u8],
    pub tag: Option<&'a str>,
    /// Several keys are joined with spaces.
    pub keys: Option<&'a str>,
    /// Chooses the queue.
    pub sharding_key: Option<&'a str>,
}

/// Which messages go the plain way: larger ones are compressed, sent alone, or refused.
#[derive(Debug, Clone, Copy)]
pub struct PlainLimits {
    body_bytes_max: usize,
}

impl PlainLimits {
    pub fn new(body_bytes_max: usize, compress_from_bytes: usize, batch_bytes_max: usize) -> Self {
        let uncompressed_max = compress_from_bytes.saturating_sub(1);
        PlainLimits { body_bytes_max: body_bytes_max.min(uncompressed_max).min(batch_bytes_max / 2) }
    }

    pub fn allow(&self, topic: &str, body: &[u8]) -> bool {
        takes_batches(topic) && body.len() <= self.body_bytes_max
    }
}

/// A message that Python has checked and encoded.
#[derive(Debug, Clone, Copy)]
pub struct CheckedMessage<'a> {
    pub topic: &'a str,
    pub body: &'a [u8],
    pub properties: &'a str,
    pub unique_id: &'a str,
    pub queue: Option<&'a BrokerQueue>,
    /// It is a request of its own.
    pub is_alone: bool,
    pub system_flag: i32,
    pub flag: i32,
}

impl CheckedMessage<'_> {
    fn size_bytes(&self) -> usize {
        RECORD_FIXED_BYTES + self.body.len() + self.properties.len()
    }
}

impl<A: Default + Send + 'static> Accumulator<A> {
    /// Takes a plain message of a topic that has been sent to before. `None` if anything stands against it: the caller
    /// then has Python check it, which says what is wrong.
    pub fn put_plain(&self, message: &PlainMessage<'_>) -> Option<Put<A>> {
        let named = [("TAGS", message.tag), ("KEYS", message.keys), (SHARDING_KEY, message.sharding_key)];
        let ids = &*self.ids;
        let own: usize =
            named.iter().filter_map(|(name, value)| value.map(|value| name.len() + value.len() + 2)).sum();
        let properties_bytes = own + UNIQUE_KEY.len() + ids.length() + 2;
        if properties_bytes > PROPERTIES_BYTES_MAX {
            return None;
        }
        let queue = match message.sharding_key {
            Some(key) => Some(self.routes.get(message.topic)?.by_key(message.topic, key)?.clone()),
            None => None,
        };
        let id = ids.next();
        let plain = BatchMessage {
            topic: message.topic,
            queue: queue.as_ref(),
            id,
            flag: 0,
            body: message.body,
            properties_bytes,
            push_properties: |out: &mut Vec<u8>| {
                for (name, value) in named {
                    if let Some(value) = value {
                        push(out, name, value);
                    }
                }
                push_unique_id(out, ids, id);
            },
        };
        // Only messages that Python has checked create a lane, so the name of this topic is right.
        self.put_known(plain).ok().flatten()
    }

    /// Takes a message that Python has checked. Refuses an id that this client did not make as [`PutError::TooLong`].
    pub fn put_checked(&self, message: &CheckedMessage<'_>, when_full: WhenFull) -> Result<Put<A>, PutError> {
        let id = self.ids.tail_of(message.unique_id).ok_or(PutError::TooLong)?;
        if message.is_alone {
            let form = Form::Alone {
                properties: message.properties.to_owned(),
                system_flag: message.system_flag,
                flag: message.flag,
            };
            let body = Bytes::copy_from_slice(message.body);
            return self.put_alone(message.topic, message.queue, id, form, body, when_full);
        }
        let plain = BatchMessage {
            topic: message.topic,
            queue: message.queue,
            id,
            flag: message.flag,
            body: message.body,
            properties_bytes: message.properties.len(),
            push_properties: |out: &mut Vec<u8>| out.extend_from_slice(message.properties.as_bytes()),
        };
        self.put(plain, when_full)
    }

    /// Waits up to `patience` until there may be space for the message.
    pub fn wait_for(&self, message: &CheckedMessage<'_>, ticket: u64, patience: Duration) {
        self.wait_in_line(ticket, message.size_bytes(), patience);
    }
}

#[cfg(test)]
mod tests;
