//! Keys of messages. Each key costs an entry of the index, in memory and on disk, so the bytes of a message have to pay for
//! its keys. A short message may have some more, which its sender's address has to pay for with time.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::codes::response_code;
use crate::net::newcomers::network_of;
use crate::net::route::Refusal;
use crate::send::properties::Marks;

/// The first key of a message is free, and one more for this many bytes; an entry of the index has 20, and a share of a
/// slot. Messages with traces have hundreds of keys, and write about each of them.
const BYTES_PER_KEY: usize = 32;
/// In a batch, the messages may have this part of `message_keys_max` on average.
const BATCH_SHARE: usize = 4;
const SECOND_NS: i64 = 1_000_000_000;
/// After a pause, an address may have the keys of this much time at once.
const BURST_NS: i64 = 4 * SECOND_NS;
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 10_000;

/// The keys of the messages of one request.
#[derive(Debug, Default)]
pub struct Keys {
    messages: usize,
    bytes: usize,
    keys: usize,
}

impl Keys {
    /// Counts a message whose body and properties have `message_bytes`. Refuses one with too many keys for its size.
    pub fn add(&mut self, marks: &Marks<'_>, message_bytes: usize, keys_max: usize) -> Result<(), Refusal> {
        self.messages += 1;
        self.bytes += message_bytes;
        let Some(keys) = marks.keys else { return Ok(()) };
        let limit = keys_max + message_bytes / BYTES_PER_KEY;
        let count = count(keys);
        if count > limit {
            return Err(too_many("message", count, limit));
        }
        self.keys += count;
        Ok(())
    }

    /// Refuses a batch whose messages have too many keys together, although none of them has too many for one message.
    pub fn check_batch(&self, keys_max: usize) -> Result<(), Refusal> {
        let limit = keys_max + self.messages * keys_max.div_ceil(BATCH_SHARE) + self.bytes / BYTES_PER_KEY;
        if self.keys > limit {
            return Err(too_many("batch", self.keys, limit));
        }
        Ok(())
    }

    /// The keys that the bytes of the messages do not pay for.
    pub fn unpaid(&self) -> usize {
        self.keys.saturating_sub(self.messages + self.bytes / BYTES_PER_KEY)
    }
}

/// How many words there are.
fn count(keys: &[u8]) -> usize {
    let is_end = |this: &u8, next: &u8| u8::from((*this != b' ') & (*next == b' '));
    // Sums that fit into a byte are computed for many bytes at once.
    const AT_ONCE: usize = u8::MAX as usize;
    let pairs = keys.chunks(AT_ONCE).zip(keys.get(1..).unwrap_or_default().chunks(AT_ONCE));
    let ends: usize = pairs
        .map(|(these, nexts)| {
            usize::from(these.iter().zip(nexts).map(|(this, next)| is_end(this, next)).sum::<u8>())
        })
        .sum();
    ends + usize::from(keys.last().is_some_and(|last| *last != b' '))
}

#[cold]
fn too_many(what: &str, count: usize, limit: usize) -> Refusal {
    let remark = format!(
        "the {what} has {count} keys; this broker accepts at most {limit} in a {what} of its size (message_keys_max): \
         put fewer into KEYS"
    );
    Refusal::new(response_code::MESSAGE_ILLEGAL, remark)
}

/// The keys that the messages of an address did not pay for, at a rate.
pub struct KeyBudget {
    per_second: u64,
    /// When everything that an address has used will be paid for.
    paid_ns: Mutex<HashMap<IpAddr, i64, RandomState>>,
}

impl KeyBudget {
    /// 0 stands for no limit.
    pub fn new(per_second: u64) -> Self {
        KeyBudget { per_second, paid_ns: Mutex::default() }
    }

    /// Counts the keys that a request does not pay for. Refuses it if its address has nothing left.
    #[cold]
    pub fn charge(&self, address: IpAddr, keys: &Keys, now_ns: i64) -> Result<(), Refusal> {
        let unpaid = keys.unpaid();
        if self.per_second == 0 || unpaid == 0 {
            return Ok(());
        }
        let network = network_of(address);
        let mut paid_ns = self.paid_ns.lock();
        if paid_ns.len() >= ADDRESSES_MAX && !paid_ns.contains_key(&network) {
            paid_ns.retain(|_, paid_ns| *paid_ns > now_ns);
            if paid_ns.len() >= ADDRESSES_MAX {
                paid_ns.clear();
            }
        }
        let paid_ns = paid_ns.entry(network).or_insert(now_ns);
        let from_ns = now_ns.max(*paid_ns);
        if from_ns - now_ns >= BURST_NS {
            let remark = format!(
                "[FLOW] the messages from {network} have too many keys for their size: beyond one for {BYTES_PER_KEY} \
                 bytes the limit is {} per second (message_keys_per_second); put fewer into KEYS, or send them later",
                self.per_second
            );
            return Err(Refusal::new(response_code::SYSTEM_BUSY, remark));
        }
        let cost_ns = unpaid as u128 * SECOND_NS as u128 / u128::from(self.per_second);
        *paid_ns = from_ns.saturating_add(i64::try_from(cost_ns).unwrap_or(i64::MAX));
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn keys_of(messages: &[(&str, usize)], keys_max: usize) -> Result<Keys, Refusal> {
        let mut all = Keys::default();
        for (keys, bytes) in messages {
            let marks = Marks { keys: Some(keys.as_bytes()), ..Marks::default() };
            all.add(&marks, *bytes, keys_max)?;
        }
        Ok(all)
    }

    #[test]
    fn words_are_counted_whatever_stands_between_them() {
        for (keys, words) in
            [("", 0), (" ", 0), ("a", 1), ("a b", 2), ("  a   b  c  ", 3), ("key key", 2), (" a", 1)]
        {
            assert_eq!(count(keys.as_bytes()), words, "{keys:?}");
        }
        assert_eq!(count(" a bc".repeat(1_000).as_bytes()), 2_000);
    }

    #[test]
    fn a_batch_pays_for_its_keys_together() {
        let many = "k ".repeat(64);
        let batch = keys_of(&vec![(many.as_str(), 155); 1_000], 64).unwrap();
        let refusal = batch.check_batch(64).unwrap_err();
        assert!(refusal.remark.contains("64000 keys; this broker accepts at most"), "{}", refusal.remark);
        assert!(refusal.remark.contains("in a batch of its size (message_keys_max)"), "{}", refusal.remark);
        assert_eq!(batch.unpaid(), 64_000 - 1_000 - 155_000 / 32);

        let usual = keys_of(&vec![("one two three", 155); 1_000], 64).unwrap();
        assert!(usual.check_batch(64).is_ok());
        assert_eq!(usual.unpaid(), 0, "ordinary messages pay with their bytes");
        let one = keys_of(&[(many.as_str(), 155)], 64).unwrap();
        assert!(one.check_batch(64).is_ok(), "what one message may have, a batch of one may have");
        let some = keys_of(&vec![("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", 90); 1_000], 64).unwrap();
        assert!(some.check_batch(64).is_ok());
    }

    #[test]
    fn an_address_has_so_many_keys_that_it_does_not_pay_for() {
        let budget = KeyBudget::new(1_000);
        let (one, other) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));
        let many = "k ".repeat(64);
        let message = keys_of(&[(many.as_str(), 155)], 64).unwrap();
        let sent = (0..1_000).take_while(|_| budget.charge(one, &message, 0).is_ok()).count();
        assert_eq!(sent, 4_000_usize.div_ceil(message.unpaid()));
        let refusal = budget.charge(one, &message, 0).unwrap_err();
        assert_eq!(refusal.code, response_code::SYSTEM_BUSY);
        assert!(refusal.remark.contains("1000 per second (message_keys_per_second)"), "{}", refusal.remark);
        assert!(budget.charge(other, &message, 0).is_ok(), "others have their own");
        let usual = keys_of(&[("one two three", 155)], 64).unwrap();
        assert!(budget.charge(one, &usual, 0).is_ok(), "nor are ordinary messages refused");
        assert!(budget.charge(one, &message, SECOND_NS).is_ok(), "time pays");
        assert!(KeyBudget::new(0).charge(one, &keys_of(&[("a b", 0)], 64).unwrap(), 0).is_ok());
    }

    #[test]
    fn a_number_of_addresses_is_remembered() {
        let budget = KeyBudget::new(1_000);
        let message = keys_of(&[("a b c d", 0)], 64).unwrap();
        for number in 0..3 * ADDRESSES_MAX as u32 {
            let address = IpAddr::V4(Ipv4Addr::from_bits(number));
            budget.charge(address, &message, i64::from(number)).unwrap();
            assert!(budget.paid_ns.lock().len() <= ADDRESSES_MAX);
        }
    }
}
