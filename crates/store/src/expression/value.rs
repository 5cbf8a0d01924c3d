//! The values of an expression and what may be done with them.
//!
//! Three-valued logic with a fourth value. Apache's broker gives up on a message if a property that is not a number is
//! compared with one. The result is then `Failed`, and the message is not delivered unless an `AND` or `OR` to the left
//! was already decided.

use std::cmp::Ordering;

use crate::expression::number::{parse_double, parse_integer, parse_long};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Failed,
    Null,
    Bool(bool),
    Integer(i32),
    Long(i64),
    Double(f64),
    Text(&'a [u8]),
}

/// The part of a value in which a text is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Anywhere,
    Start,
    End,
}

impl Value<'_> {
    pub(super) fn negate(self) -> Self {
        match self {
            Self::Integer(value) => Self::Integer(value.wrapping_neg()),
            Self::Long(value) => Self::Long(value.wrapping_neg()),
            Self::Double(value) => Self::Double(-value),
            Self::Failed => Self::Failed,
            Self::Null | Self::Bool(_) | Self::Text(_) => Self::Null,
        }
    }

    /// A property is a text and never a truth value, so it is either false or unknown.
    pub(super) fn truth(self) -> Self {
        match self {
            Self::Failed | Self::Null | Self::Bool(_) => self,
            Self::Integer(_) | Self::Long(_) | Self::Double(_) | Self::Text(_) => Self::Bool(false),
        }
    }

    pub(super) fn not(self) -> Self {
        match self {
            Self::Bool(value) => Self::Bool(!value),
            Self::Null => Self::Null,
            _ => Self::Failed,
        }
    }

    pub(super) fn is_null(self) -> Self {
        match self {
            Self::Failed => Self::Failed,
            _ => Self::Bool(self == Self::Null),
        }
    }

    pub(super) fn and(self, right: Self) -> Self {
        self.decide(right, false)
    }

    pub(super) fn or(self, right: Self) -> Self {
        self.decide(right, true)
    }

    /// AND is decided by the first false, OR by the first true; a failure counts unless that came before it.
    fn decide(self, right: Self, decisive: bool) -> Self {
        match (self, right) {
            (Self::Bool(left), _) if left == decisive => self,
            (Self::Bool(_) | Self::Null, Self::Bool(value)) if value == decisive => right,
            (Self::Bool(_), Self::Bool(_)) => Self::Bool(!decisive),
            (Self::Bool(_) | Self::Null, Self::Bool(_) | Self::Null) => Self::Null,
            _ => Self::Failed,
        }
    }

    /// Two nulls are equal, a null to the left is unknown and one to the right is unequal, as Apache has it.
    pub(super) fn equal(self, right: Self) -> Self {
        match (self, right) {
            (Self::Failed, _) | (_, Self::Failed) => Self::Failed,
            (Self::Null, Self::Null) => Self::Bool(true),
            (Self::Null, _) => Self::Null,
            (_, Self::Null) => Self::Bool(false),
            _ => self.compare(right).map_or(Self::Failed, |order| Self::Bool(order.is_eq())),
        }
    }

    pub(super) fn ordered(self, right: Self, wanted: impl FnOnce(Ordering) -> bool) -> Self {
        let order = match (self, right) {
            (Self::Failed, _) => None,
            (Self::Null, _) => return Self::Null,
            (_, Self::Failed) => None,
            (_, Self::Null) => return Self::Null,
            // Texts have no order of their own: both must be numbers.
            (Self::Text(left), Self::Text(right)) => {
                parse_double(left).zip(parse_double(right)).map(|(left, right)| compare_doubles(left, right))
            }
            _ => self.compare(right),
        };
        order.map_or(Self::Failed, |order| Self::Bool(wanted(order)))
    }

    /// Compares two values; None if that is impossible. A property is converted to the type of the other value.
    fn compare(self, right: Self) -> Option<Ordering> {
        match (self, right) {
            (Self::Bool(left), Self::Bool(right)) => Some(left.cmp(&right)),
            (Self::Text(left), Self::Text(right)) => Some(left.cmp(right)),
            (Self::Text(left), Self::Bool(right)) => Some(left.eq_ignore_ascii_case(b"true").cmp(&right)),
            (Self::Text(left), Self::Integer(right)) => Some(parse_integer(left)?.cmp(&right)),
            (Self::Text(left), Self::Long(right)) => Some(parse_long(left)?.cmp(&right)),
            (Self::Text(left), Self::Double(right)) => Some(compare_doubles(parse_double(left)?, right)),
            (Self::Integer(left), Self::Text(right)) => Some(left.cmp(&parse_integer(right)?)),
            (Self::Long(left), Self::Text(right)) => Some(left.cmp(&parse_long(right)?)),
            (Self::Double(left), Self::Text(right)) => Some(compare_doubles(left, parse_double(right)?)),
            // Apache's conversion breaks down the other way round: `TRUE = a` never matches.
            (Self::Bool(_), Self::Text(_)) => None,
            (Self::Bool(_), Self::Integer(_) | Self::Long(_) | Self::Double(_)) => Some(Ordering::Less),
            (Self::Integer(_) | Self::Long(_) | Self::Double(_), Self::Bool(_)) => Some(Ordering::Less),
            (Self::Double(left), right) => Some(compare_doubles(left, right.as_double()?)),
            (left, Self::Double(right)) => Some(compare_doubles(left.as_double()?, right)),
            (left, right) => Some(left.as_long()?.cmp(&right.as_long()?)),
        }
    }

    fn as_long(self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(i64::from(value)),
            Self::Long(value) => Some(value),
            _ => None,
        }
    }

    fn as_double(self) -> Option<f64> {
        match self {
            Self::Double(value) => Some(value),
            _ => self.as_long().map(|value| value as f64),
        }
    }

    /// `texts` are sorted.
    pub(super) fn is_in(self, texts: &[Box<[u8]>], negated: bool) -> Self {
        match self {
            Self::Failed => Self::Failed,
            Self::Text(value) => {
                let found = texts.binary_search_by(|text| (**text).cmp(value)).is_ok();
                Self::Bool(found != negated)
            }
            _ => Self::Null,
        }
    }

    /// False, and never unknown, for a value that is not a text; an empty text is neither found nor missed.
    pub(super) fn search(self, search: Search, text: &[u8], negated: bool) -> Self {
        match self {
            _ if text.is_empty() => Self::Bool(false),
            Self::Failed => Self::Failed,
            Self::Text(value) => {
                let found = match search {
                    Search::Anywhere => contains(value, text),
                    Search::Start => value.starts_with(text),
                    Search::End => value.ends_with(text),
                };
                Self::Bool(found != negated)
            }
            _ => Self::Bool(false),
        }
    }
}

/// Java's order of doubles: −0 comes before 0, and NaN equals itself and comes last.
fn compare_doubles(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}

/// Through `str`, whose search takes linear time whatever the texts are made of.
fn contains(value: &[u8], text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    match std::str::from_utf8(value) {
        Ok(value) => value.contains(text),
        // Nearly all values are valid, and going through them in chunks takes many times as long.
        Err(_) => value.utf8_chunks().any(|chunk| chunk.valid().contains(text)),
    }
}
