//! The limits of committed offsets, and the parts of them that resets and copies may fill.

use std::fmt::{self, Display, Formatter};

use crate::settings::OffsetLimits;

/// How many offsets there are: pairs of a topic and a group, and the queues of all these pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub pairs: usize,
    pub places: usize,
}

/// The part of a limit that somebody may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Consumers that commit.
    All,
    /// Consumers at one address.
    Address,
    /// Resets and copies. One short request makes thousands of offsets, and consumers must still be able to commit.
    Resets,
    /// Resets and copies, with the offsets of one group.
    ResetsOfGroup,
}

/// A limit of committed offsets that would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    setting: &'static str,
    what: &'static str,
    max: usize,
    share: Share,
}

impl Extent {
    /// Whether the broker or the group, which has this many, may have those that are new as well. What is known already
    /// is never refused.
    pub fn check(self, new: Extent, limits: &OffsetLimits, share: Share) -> Result<(), Full> {
        let max = limits.places_max / share.divisor();
        if new.places > 0 && self.places + new.places > max {
            return Err(Full { setting: "committed_offsets_max", what: "queues", max, share });
        }
        let max = limits.pairs_max / share.divisor();
        if new.pairs > 0 && self.pairs + new.pairs > max {
            let what = "pairs of a topic and a group";
            return Err(Full { setting: "committed_pairs_max", what, max, share });
        }
        Ok(())
    }
}

impl Share {
    fn divisor(self) -> usize {
        match self {
            Share::All => 1,
            Share::Address | Share::Resets => 2,
            Share::ResetsOfGroup => 8,
        }
    }
}

impl Display for Full {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Full { setting, what, max, share } = self;
        let whose = match share {
            Share::All | Share::Resets => "this broker",
            Share::Address => "this address",
            Share::ResetsOfGroup => "the group",
        };
        write!(out, "[OVERLOAD] {whose} would have committed offsets of more than {max} {what}, ")?;
        match share {
            Share::All => write!(out, "the limit ({setting})")?,
            Share::Address => write!(out, "the limit for commits from one address (half of {setting})")?,
            Share::Resets => write!(out, "the limit for resets and copies (half of {setting})")?,
            Share::ResetsOfGroup => {
                write!(out, "the limit for resets and copies of one group (an eighth of {setting})")?;
            }
        }
        out.write_str(": delete unused groups with their offsets, or unused topics")
    }
}
