//! Message filters beyond tags: a compiled SQL92 expression, run over the properties of one record.
//!
//! The control plane parses the expression into a flat list of operations in postfix order. [`Program::build`] checks
//! it once, so that [`Program::matches`] can neither fail nor allocate.

mod number;
#[cfg(test)]
mod tests;
mod value;

use metaq_wire::properties::{entries, entries_max};

use number::NUMBER_BYTES_MAX;
use value::{Search, Value};

/// The most operations of one program.
pub const OPERATIONS_MAX: usize = 8192;
/// The most values on the stack at a time.
pub const STACK_MAX: usize = 128;
/// The most different properties that a program may read.
pub const PROPERTIES_MAX: usize = 128;
/// The most searches for a text anywhere in a property, each of which reads the whole property.
pub const SEARCHES_MAX: usize = 128;
/// An operation costs as much as a look at this many bytes, whatever it does.
const OPERATION_BYTES: u64 = 16;
/// The same for a property of the record, however short: finding its ends and looking its name up.
const PROPERTY_BYTES: u64 = 48;
/// Memory is given out in multiples of this.
const ALLOCATION_BYTES: usize = 16;
/// Programs within these bounds, which is nearly all of them, run in an eighth of the space.
const SMALL: usize = 8;

/// One operation: it takes values from the stack and leaves exactly one there.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    Null,
    Bool(bool),
    Integer(i32),
    Long(i64),
    Double(f64),
    Text(String),
    /// The value of a property, or null.
    Property(String),
    Negate,
    /// A property that is used as a truth value.
    Truth,
    Not,
    IsNull,
    And,
    Or,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Between,
    NotBetween,
    In(Vec<String>),
    NotIn(Vec<String>),
    Contains(String),
    NotContains(String),
    StartsWith(String),
    NotStartsWith(String),
    EndsWith(String),
    NotEndsWith(String),
}

/// The reasons why a list of operations is not a valid program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("the expression has {count} operations, the limit is {OPERATIONS_MAX}")]
    TooLong { count: usize },
    #[error("the expression has to keep more than {STACK_MAX} values at a time")]
    TooDeep,
    #[error("the expression asks for more than {PROPERTIES_MAX} properties")]
    TooManyProperties,
    #[error("the expression has {count} searches with CONTAINS, the limit is {SEARCHES_MAX}")]
    TooManySearches { count: usize },
    #[error("operation {at} of the expression finds too few values")]
    MissingValue { at: usize },
    #[error("the expression leaves {count} values instead of one")]
    NotOneValue { count: usize },
}

/// An expression that is ready to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    steps: Vec<Step>,
    /// Names of the properties that it reads, sorted; steps refer to them by index.
    names: Vec<Box<[u8]>>,
    depth: usize,
    /// How often its steps may read a whole property.
    searches: usize,
    /// How often they may read a number.
    numbers: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Constant(Value<'static>),
    Text(Box<[u8]>),
    Property(usize),
    Negate,
    Truth,
    Not,
    IsNull,
    And,
    Or,
    Equal,
    Order(Order),
    Between { negated: bool },
    In { texts: Vec<Box<[u8]>>, negated: bool },
    Search { search: Search, text: Box<[u8]>, negated: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Program {
    /// Checks that every operation finds its values and that one value is left.
    pub fn build(operations: Vec<Operation>) -> Result<Self, ExpressionError> {
        if operations.len() > OPERATIONS_MAX {
            return Err(ExpressionError::TooLong { count: operations.len() });
        }
        let depth = depth_of(&operations)?;
        let mut names: Vec<Box<[u8]>> = operations
            .iter()
            .filter_map(|operation| match operation {
                Operation::Property(name) => Some(name.as_bytes().into()),
                _ => None,
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        if names.len() > PROPERTIES_MAX {
            return Err(ExpressionError::TooManyProperties);
        }
        let is_search =
            |operation: &&Operation| matches!(operation, Operation::Contains(_) | Operation::NotContains(_));
        let searches = operations.iter().filter(is_search).count();
        if searches > SEARCHES_MAX {
            return Err(ExpressionError::TooManySearches { count: searches });
        }
        let (pairs, numbers) = comparisons_of(&operations);
        let steps = operations.into_iter().map(|operation| Step::new(operation, &names)).collect();
        Ok(Self { steps, names, depth, searches: searches + pairs, numbers })
    }

    /// The bytes that [`Program::matches`] looks at, at most: all properties once to find the values, once more for each
    /// search and each comparison of two properties, and the longest number for each comparison with a number. A property
    /// and an operation count as some bytes more.
    #[inline]
    pub fn examined_bytes(&self, properties: &[u8]) -> u64 {
        let bytes = properties.len();
        (1 + self.searches as u64) * bytes as u64
            + self.numbers as u64 * bytes.min(NUMBER_BYTES_MAX) as u64
            + PROPERTY_BYTES * entries_max(properties) as u64
            + OPERATION_BYTES * self.steps.len() as u64
    }

    /// About the memory that it takes, with all its texts.
    pub fn memory_bytes(&self) -> usize {
        let names: usize = self.names.iter().map(|name| text_bytes(name)).sum();
        size_of::<Self>() + names + self.steps.iter().map(Step::memory_bytes).sum::<usize>()
    }

    /// How many operations it has, at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether a record with these properties (`name 0x01 value 0x02` …) is wanted.
    pub fn matches(&self, properties: &[u8]) -> bool {
        let result = if self.depth <= SMALL && self.names.len() <= SMALL {
            self.run::<SMALL, SMALL>(properties)
        } else {
            self.run::<STACK_MAX, PROPERTIES_MAX>(properties)
        };
        result == Value::Bool(true)
    }

    fn run<'a, const DEPTH: usize, const NAMES: usize>(&'a self, properties: &'a [u8]) -> Value<'a> {
        let values = self.look_up::<NAMES>(properties);
        let mut stack = Stack { values: [Value::Null; DEPTH], len: 0 };
        for step in &self.steps {
            let value = match step {
                Step::Constant(value) => *value,
                Step::Text(text) => Value::Text(text),
                Step::Property(place) => values.get(*place).copied().unwrap_or(Value::Null),
                Step::Negate => stack.pop().negate(),
                Step::Truth => stack.pop().truth(),
                Step::Not => stack.pop().not(),
                Step::IsNull => stack.pop().is_null(),
                Step::And => {
                    let right = stack.pop();
                    stack.pop().and(right)
                }
                Step::Or => {
                    let right = stack.pop();
                    stack.pop().or(right)
                }
                Step::Equal => {
                    let right = stack.pop();
                    stack.pop().equal(right)
                }
                Step::Order(order) => {
                    let right = stack.pop();
                    order.of(stack.pop(), right)
                }
                Step::Between { negated } => {
                    let (high, low) = (stack.pop(), stack.pop());
                    between(stack.pop(), low, high, *negated)
                }
                Step::In { texts, negated } => stack.pop().is_in(texts, *negated),
                Step::Search { search, text, negated } => stack.pop().search(*search, text, *negated),
            };
            stack.push(value);
        }
        stack.pop()
    }

    /// The values of all properties that the program reads, found in one pass. If a name comes twice, the last one
    /// counts.
    fn look_up<'a, const NAMES: usize>(&self, properties: &'a [u8]) -> [Value<'a>; NAMES] {
        let mut values = [Value::Null; NAMES];
        for entry in entries(properties) {
            let place = self.names.binary_search_by(|name| (**name).cmp(entry.name));
            if let Some(value) = place.ok().and_then(|place| values.get_mut(place)) {
                *value = Value::Text(entry.value);
            }
        }
        values
    }
}

impl Operation {
    /// How many values it takes from the stack.
    fn takes(&self) -> usize {
        match self {
            Self::Null
            | Self::Bool(_)
            | Self::Integer(_)
            | Self::Long(_)
            | Self::Double(_)
            | Self::Text(_)
            | Self::Property(_) => 0,
            Self::Negate
            | Self::Truth
            | Self::Not
            | Self::IsNull
            | Self::In(_)
            | Self::NotIn(_)
            | Self::Contains(_)
            | Self::NotContains(_)
            | Self::StartsWith(_)
            | Self::NotStartsWith(_)
            | Self::EndsWith(_)
            | Self::NotEndsWith(_) => 1,
            Self::And
            | Self::Or
            | Self::Equal
            | Self::Greater
            | Self::GreaterOrEqual
            | Self::Less
            | Self::LessOrEqual => 2,
            Self::Between | Self::NotBetween => 3,
        }
    }
}

/// How often two properties are compared with each other, and how often a property may be read as a number. A comparison
/// with a text costs no more than the text has bytes, and the expression itself is not long.
fn comparisons_of(operations: &[Operation]) -> (usize, usize) {
    let (mut pairs, mut numbers) = (0, 0);
    for (at, operation) in operations.iter().enumerate() {
        match (operation, operations.get(..at).unwrap_or_default()) {
            (Operation::Equal, [.., Operation::Property(_), Operation::Property(_)]) => pairs += 1,
            (
                Operation::Equal,
                [.., Operation::Text(_)] | [.., Operation::Text(_), Operation::Property(_)],
            ) => {}
            (
                Operation::Equal
                | Operation::Greater
                | Operation::GreaterOrEqual
                | Operation::Less
                | Operation::LessOrEqual,
                _,
            ) => numbers += 2,
            (Operation::Between | Operation::NotBetween, _) => numbers += 4,
            _ => {}
        }
    }
    (pairs, numbers)
}

/// The most values on the stack at any time.
fn depth_of(operations: &[Operation]) -> Result<usize, ExpressionError> {
    let (mut count, mut depth) = (0_usize, 0);
    for (at, operation) in operations.iter().enumerate() {
        let left = count.checked_sub(operation.takes()).ok_or(ExpressionError::MissingValue { at })?;
        count = left + 1;
        depth = depth.max(count);
    }
    if count != 1 {
        return Err(ExpressionError::NotOneValue { count });
    }
    if depth > STACK_MAX {
        return Err(ExpressionError::TooDeep);
    }
    Ok(depth)
}

impl Step {
    fn new(operation: Operation, names: &[Box<[u8]>]) -> Self {
        let find = |search, text: String, negated| Self::Search { search, text: bytes(text), negated };
        match operation {
            Operation::Null => Self::Constant(Value::Null),
            Operation::Bool(value) => Self::Constant(Value::Bool(value)),
            Operation::Integer(value) => Self::Constant(Value::Integer(value)),
            Operation::Long(value) => Self::Constant(Value::Long(value)),
            Operation::Double(value) => Self::Constant(Value::Double(value)),
            Operation::Text(text) => Self::Text(bytes(text)),
            Operation::Property(name) => {
                // Always there; an index past the end would read as null.
                let place = names.binary_search_by(|other| (**other).cmp(name.as_bytes()));
                Self::Property(place.unwrap_or(usize::MAX))
            }
            Operation::Negate => Self::Negate,
            Operation::Truth => Self::Truth,
            Operation::Not => Self::Not,
            Operation::IsNull => Self::IsNull,
            Operation::And => Self::And,
            Operation::Or => Self::Or,
            Operation::Equal => Self::Equal,
            Operation::Greater => Self::Order(Order::Greater),
            Operation::GreaterOrEqual => Self::Order(Order::GreaterOrEqual),
            Operation::Less => Self::Order(Order::Less),
            Operation::LessOrEqual => Self::Order(Order::LessOrEqual),
            Operation::Between => Self::Between { negated: false },
            Operation::NotBetween => Self::Between { negated: true },
            Operation::In(texts) => Self::In { texts: sorted(texts), negated: false },
            Operation::NotIn(texts) => Self::In { texts: sorted(texts), negated: true },
            Operation::Contains(text) => find(Search::Anywhere, text, false),
            Operation::NotContains(text) => find(Search::Anywhere, text, true),
            Operation::StartsWith(text) => find(Search::Start, text, false),
            Operation::NotStartsWith(text) => find(Search::Start, text, true),
            Operation::EndsWith(text) => find(Search::End, text, false),
            Operation::NotEndsWith(text) => find(Search::End, text, true),
        }
    }

    fn memory_bytes(&self) -> usize {
        let texts = match self {
            Self::Text(text) | Self::Search { text, .. } => text_bytes(text),
            Self::In { texts, .. } => texts.iter().map(|text| text_bytes(text)).sum(),
            _ => 0,
        };
        size_of::<Self>() + texts
    }
}

/// The memory of a text and of the pointer to it.
fn text_bytes(text: &[u8]) -> usize {
    size_of::<Box<[u8]>>() + text.len().next_multiple_of(ALLOCATION_BYTES)
}

fn bytes(text: String) -> Box<[u8]> {
    text.into_bytes().into()
}

fn sorted(texts: Vec<String>) -> Vec<Box<[u8]>> {
    let mut texts: Vec<_> = texts.into_iter().map(bytes).collect();
    texts.sort_unstable();
    texts
}

impl Order {
    fn of<'a>(self, left: Value<'a>, right: Value<'a>) -> Value<'a> {
        left.ordered(right, |order| match self {
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
        })
    }
}

fn between<'a>(value: Value<'a>, low: Value<'a>, high: Value<'a>, negated: bool) -> Value<'a> {
    if negated {
        Order::Less.of(value, low).or(Order::Greater.of(value, high))
    } else {
        Order::GreaterOrEqual.of(value, low).and(Order::LessOrEqual.of(value, high))
    }
}

/// The bounds were checked when the program was built, so the fallback to null never happens.
struct Stack<'a, const DEPTH: usize> {
    values: [Value<'a>; DEPTH],
    len: usize,
}

impl<'a, const DEPTH: usize> Stack<'a, DEPTH> {
    #[inline]
    fn push(&mut self, value: Value<'a>) {
        if let Some(place) = self.values.get_mut(self.len) {
            *place = value;
            self.len += 1;
        }
    }

    #[inline]
    fn pop(&mut self) -> Value<'a> {
        self.len = self.len.saturating_sub(1);
        self.values.get(self.len).copied().unwrap_or(Value::Null)
    }
}
