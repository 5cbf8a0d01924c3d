//! Filters of pulls that bring their own expression, as Python compiled them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use metaq_store::Filter;
use parking_lot::RwLock;

/// Operations of all remembered programs together; at most about twenty megabytes.
const OPERATIONS_MAX: usize = 200_000;
/// Bytes of a function call's text that count as one operation.
const CALL_BYTES: usize = 64;

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
    operations: usize,
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
        table.operations += operations(&filter);
        let text: Arc<str> = text.into();
        table.filters.insert(Arc::clone(&text), filter);
        table.texts.push_back(text);
        while table.operations > OPERATIONS_MAX {
            let Some(oldest) = table.texts.pop_front().and_then(|text| table.filters.remove(&text)) else {
                return;
            };
            table.operations -= operations(&oldest);
        }
    }
}

fn operations(filter: &Filter) -> usize {
    match filter {
        Filter::Expression(program) => program.len(),
        Filter::Function(call) => 1 + call.text.len() / CALL_BYTES,
        Filter::All | Filter::Tags(_) => 1,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metaq_store::Program;
    use metaq_store::expression::{OPERATIONS_MAX as PROGRAM_OPERATIONS_MAX, Operation};

    use super::*;

    fn program(operations: usize) -> Filter {
        let mut list = vec![Operation::Null; 1];
        list.resize(operations, Operation::IsNull);
        Filter::Expression(Arc::new(Program::build(list).unwrap()))
    }

    #[test]
    fn the_oldest_make_room() {
        let expressions = Expressions::default();
        let fitting = OPERATIONS_MAX / PROGRAM_OPERATIONS_MAX;
        for number in 0..=fitting {
            expressions.put(&number.to_string(), program(PROGRAM_OPERATIONS_MAX));
        }
        assert!(expressions.find("0").is_none());
        assert!(expressions.find("1").is_some());
        assert!(expressions.find(&fitting.to_string()).is_some());
        expressions.put("1", program(1));
        let kept = expressions.find("1").unwrap();
        assert_eq!(operations(&kept), PROGRAM_OPERATIONS_MAX, "one text, one program");
        assert_eq!(expressions.table.read().texts.len(), fitting);
    }
}
