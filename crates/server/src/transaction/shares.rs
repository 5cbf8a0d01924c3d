//! The shares of producer groups and addresses: how many transactions each of them may have open, and how many bytes of
//! its half messages one turn of checks stores again.
//!
//! A sender chooses the name of its group freely, and may give that of another. So what counts in the end is the address:
//! no address can use up what all need, and nobody can use up what another address has left in a group.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::LazyLock;

use foldhash::fast::RandomState;

use crate::net::newcomers::network_of;
use crate::settings::TransactionSettings;
use crate::transaction::open::Kind;

/// An address has this part of its group's share in any case, whatever others have open in the group's name.
const MEMBER_PART: usize = 8;
/// A half message costs at least this much of a turn: to read, write and ask about a small one takes time, too.
const RENEWAL_BYTES_MIN: u64 = 4_096;

/// The number of open transactions by the name of a group or a topic.
pub type OpenByName = HashMap<NameKey, usize, RandomState>;

/// Stands for the name of a producer group or a topic, or for an address, of which there may be one for each of many
/// transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameKey(u64);

impl NameKey {
    pub fn of(name: &[u8]) -> Self {
        // Random in each process, so that nobody can choose a name that counts as another's.
        static HASHING: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        NameKey(HASHING.hash_one(name))
    }

    pub fn of_address(address: IpAddr) -> Self {
        match network_of(address) {
            IpAddr::V4(address) => NameKey::of(&address.octets()),
            IpAddr::V6(address) => NameKey::of(&address.octets()),
        }
    }

    #[cfg(test)]
    pub const fn numbered(number: u64) -> Self {
        NameKey(number)
    }
}

/// The limit that keeps a sender from beginning another transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    All,
    Address,
    Group,
}

/// The open transactions of each, and the bytes of each that the present turn of checks has taken.
#[derive(Default)]
pub struct Shares {
    open_max: usize,
    open_per_group_max: usize,
    open_per_address_max: usize,
    renew_bytes_max: u64,
    open: usize,
    of_group: OpenByName,
    of_topic: OpenByName,
    of_address: OpenByName,
    /// By group and address.
    of_member: HashMap<(NameKey, NameKey), usize, RandomState>,
    turn_began_ms: i64,
    /// The bytes of each address that the turn has taken.
    taken: HashMap<NameKey, u64, RandomState>,
}

impl Shares {
    pub fn new(settings: &TransactionSettings) -> Self {
        Shares {
            open_max: settings.open_max,
            open_per_group_max: settings.open_per_group_max,
            open_per_address_max: settings.open_per_address_max,
            renew_bytes_max: settings.renew_bytes_max,
            ..Shares::default()
        }
    }

    /// The limit that a further transaction would break.
    pub fn full(&self, kind: &Kind) -> Option<Full> {
        let is_group_full = || {
            count_of(&self.of_group, &kind.group) >= self.open_per_group_max
                && count_of(&self.of_member, &(kind.group, kind.address))
                    >= self.open_per_group_max / MEMBER_PART
        };
        match () {
            () if self.open >= self.open_max => Some(Full::All),
            () if count_of(&self.of_address, &kind.address) >= self.open_per_address_max => {
                Some(Full::Address)
            }
            () if is_group_full() => Some(Full::Group),
            () => None,
        }
    }

    pub fn add(&mut self, kind: &Kind) {
        self.open += 1;
        *self.of_group.entry(kind.group).or_default() += 1;
        *self.of_topic.entry(kind.topic).or_default() += 1;
        *self.of_address.entry(kind.address).or_default() += 1;
        *self.of_member.entry((kind.group, kind.address)).or_default() += 1;
    }

    pub fn remove(&mut self, kind: &Kind) {
        self.open -= 1;
        count_out_of(&mut self.of_group, kind.group);
        count_out_of(&mut self.of_topic, kind.topic);
        count_out_of(&mut self.of_address, kind.address);
        count_out_of(&mut self.of_member, (kind.group, kind.address));
    }

    pub fn open_in_group(&self, group: NameKey) -> usize {
        count_of(&self.of_group, &group)
    }

    pub fn open_of_topic(&self) -> &OpenByName {
        &self.of_topic
    }

    /// Every address has its whole share again when another turn of checks begins.
    pub fn begin_turn(&mut self, began_ms: i64) {
        if self.turn_began_ms != began_ms {
            self.turn_began_ms = began_ms;
            self.taken.clear();
        }
    }

    /// Takes a half message from its address's share of the turn; false if the share is used up.
    pub fn take(&mut self, kind: &Kind) -> bool {
        let taken = self.taken.entry(kind.address).or_default();
        if *taken >= self.renew_bytes_max {
            return false;
        }
        *taken += u64::from(kind.bytes).max(RENEWAL_BYTES_MIN);
        true
    }
}

fn count_of<K: Eq + Hash>(open: &HashMap<K, usize, RandomState>, key: &K) -> usize {
    open.get(key).copied().unwrap_or(0)
}

fn count_out_of<K: Eq + Hash>(open: &mut HashMap<K, usize, RandomState>, key: K) {
    if let Entry::Occupied(mut open) = open.entry(key) {
        *open.get_mut() -= 1;
        if *open.get() == 0 {
            open.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Shares {
        Shares::new(&TransactionSettings {
            timeout_ms: 6_000,
            immunity_ms_max: 1_000,
            open_max: 40,
            open_per_group_max: 16,
            open_per_address_max: 20,
            ended_kept: 1,
            renew_bytes_max: 10_000,
            message_keys_max: 64,
        })
    }

    fn kind(group: u64, address: u64) -> Kind {
        Kind {
            immunity_ms: -1,
            is_batch: false,
            bytes: 6_000,
            group: NameKey(group),
            topic: NameKey(0),
            address: NameKey(address),
        }
    }

    #[test]
    fn no_address_uses_up_what_all_need_however_many_groups_it_names() {
        let mut shares = shares();
        let begun = (0..100).filter(|group| {
            let is_free = shares.full(&kind(*group, 1)).is_none();
            if is_free {
                shares.add(&kind(*group, 1));
            }
            is_free
        });
        assert_eq!(begun.count(), 20);
        assert_eq!(shares.full(&kind(7, 1)), Some(Full::Address));
        assert_eq!(shares.full(&kind(7, 2)), None);
        (0..20).for_each(|_| shares.add(&kind(7, 2)));
        assert_eq!(shares.full(&kind(7, 3)), Some(Full::All));
    }

    #[test]
    fn nobody_uses_up_the_share_of_a_group_for_others_by_its_name() {
        let mut shares = shares();
        (0..16).for_each(|_| shares.add(&kind(1, 1)));
        assert_eq!(shares.full(&kind(1, 1)), Some(Full::Group));
        shares.add(&kind(1, 2));
        assert_eq!(shares.full(&kind(1, 2)), None);
        shares.add(&kind(1, 2));
        assert_eq!(shares.full(&kind(1, 2)), Some(Full::Group), "an eighth of the group's share");
        shares.remove(&kind(1, 1));
        shares.remove(&kind(1, 1));
        shares.remove(&kind(1, 1));
        assert_eq!(shares.full(&kind(1, 2)), None);
    }

    #[test]
    fn what_has_ended_leaves_nothing() {
        let mut shares = shares();
        shares.add(&kind(1, 2));
        shares.remove(&kind(1, 2));
        assert!(shares.of_group.is_empty() && shares.of_topic.is_empty());
        assert!(shares.of_address.is_empty() && shares.of_member.is_empty() && shares.open == 0);
    }

    #[test]
    fn a_turn_takes_so_many_bytes_of_an_address() {
        let mut shares = shares();
        shares.begin_turn(1);
        assert_eq!([1, 2, 3].map(|group| shares.take(&kind(group, 1))), [true, true, false]);
        assert!(shares.take(&kind(1, 2)), "another address");
        shares.begin_turn(1);
        assert!(!shares.take(&kind(1, 1)), "the same turn");
        shares.begin_turn(2);
        let small = Kind { bytes: 1, ..kind(1, 1) };
        let taken = (0..100).filter(|_| shares.take(&small)).count();
        assert_eq!(taken, 3, "a small one counts for 4,096");
    }

    #[test]
    fn a_machine_has_many_addresses_of_one_network() {
        let key = |text: &str| NameKey::of_address(text.parse().unwrap_or(IpAddr::from([0, 0, 0, 0])));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1:2:3"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_ne!(key("192.0.2.2"), key("192.0.2.1"));
    }
}
