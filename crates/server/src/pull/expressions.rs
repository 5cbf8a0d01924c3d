//! Filters of pulls that bring their own expression, as Python compiled them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use metaq_store::Filter;
use parking_lot::RwLock;

/// Memory of all remembered filters with their texts.
const BYTES_MAX: usize = 20_000_000;
/// Memory of a filter's places in the tables.
const ENTRY_BYTES: usize = 256;

/// Filters by the text they were compiled from. The oldest are dropped when there are too many; a pull that needs one of
/// them crosses again.
#[derive(Default)]
pub struct Expressions {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    filters: HashMap<Arc<str>, Filter, RandomState>,
    /// In the order of arrival.
    texts: VecDeque<Arc<str>>,
    bytes: usize,
}

impl Expressions {
    pub fn find(&self, text: &str) -> Option<Filter> {
        self.table.read().filters.get(text).cloned()
    }

    pub fn put(&self, text: &str, filter: Filter) {
        let table = &mut *self.table.write();
        if table.filters.contains_key(text) {
            return;
        }
        table.bytes += memory_bytes(text, &filter);
        let text: Arc<str> = text.into();
        table.filters.insert(Arc::clone(&text), filter);
        table.texts.push_back(text);
        while table.bytes > BYTES_MAX {
            let Some(oldest) = table.texts.pop_front() else { return };
            if let Some(filter) = table.filters.remove(&oldest) {
                table.bytes -= memory_bytes(&oldest, &filter);
            }
        }
    }
}

/// The memory of an entry. A short text may have a long program, and a long text a short one.
fn memory_bytes(text: &str, filter: &Filter) -> usize {
    ENTRY_BYTES + text.len() + filter.memory_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metaq_store::Program;
    use metaq_store::expression::{OPERATIONS_MAX, Operation};

    use super::*;

    fn program(operations: usize) -> Filter {
        let mut list = vec![Operation::Null; 1];
        list.resize(operations, Operation::IsNull);
        Filter::Expression(Arc::new(Program::build(list).unwrap()))
    }

    fn is(literals: Vec<String>) -> Filter {
        let operations = vec![Operation::Property("a".to_owned()), Operation::In(literals)];
        Filter::Expression(Arc::new(Program::build(operations).unwrap()))
    }

    #[test]
    fn the_oldest_make_room() {
        let expressions = Expressions::default();
        let long = program(OPERATIONS_MAX);
        let fitting = BYTES_MAX / memory_bytes("0", &long);
        for number in 0..=fitting {
            expressions.put(&number.to_string(), long.clone());
        }
        assert!(expressions.find("0").is_none());
        assert!(expressions.find(&fitting.to_string()).is_some());
        expressions.put(&fitting.to_string(), program(1));
        assert_eq!(expressions.find(&fitting.to_string()), Some(long), "one text, one program");
        let table = expressions.table.read();
        assert!(table.texts.len() <= fitting && table.texts.len() == table.filters.len());
    }

    #[test]
    fn long_and_many_literals_count_as_the_memory_that_they_take() {
        let expressions = Expressions::default();
        for number in 0..10_000 {
            let letters = format!("{number}").repeat(16_300 / number.to_string().len());
            expressions.put(&format!("a = '{letters}'"), is(vec![letters]));
        }
        for number in 0..10_000 {
            let many: Vec<String> = (0..100).map(|literal| format!("{number}{literal}")).collect();
            expressions.put(&format!("a IN {number}"), is(many));
        }
        let table = expressions.table.read();
        let literals = |filter: &Filter| filter.memory_bytes();
        let kept: usize = table.filters.iter().map(|(text, filter)| text.len() + literals(filter)).sum();
        assert!(kept < 20_000_000, "{kept}");
        assert!(literals(&is(vec!["x".repeat(16_300)])) > 16_300);
        assert!(literals(&is(vec!["x".to_owned(); 100])) > 100 * 32);
        assert!(table.texts.len() > 1_000, "but common ones stay");
    }
}
