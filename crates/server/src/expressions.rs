//! Expressions that pulls carry themselves, as Python compiled them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use metaq_store::Program;
use parking_lot::RwLock;

/// Operations of all remembered programs together: some twenty megabytes at the worst.
const OPERATIONS_MAX: usize = 200_000;

/// Programs by the text they were compiled from. The oldest go when there are too many; a pull that needs one again
/// crosses once more.
#[derive(Default)]
pub struct Expressions {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    programs: HashMap<Arc<str>, Arc<Program>, RandomState>,
    /// In the order they came.
    texts: VecDeque<Arc<str>>,
    operations: usize,
}

impl Expressions {
    pub fn find(&self, text: &str) -> Option<Arc<Program>> {
        self.table.read().programs.get(text).cloned()
    }

    pub fn put(&self, text: &str, program: Program) {
        let table = &mut *self.table.write();
        if table.programs.contains_key(text) {
            return;
        }
        table.operations += program.len();
        let text: Arc<str> = text.into();
        table.programs.insert(Arc::clone(&text), Arc::new(program));
        table.texts.push_back(text);
        while table.operations > OPERATIONS_MAX {
            let Some(oldest) = table.texts.pop_front().and_then(|text| table.programs.remove(&text)) else {
                return;
            };
            table.operations -= oldest.len();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use metaq_store::expression::{OPERATIONS_MAX as PROGRAM_OPERATIONS_MAX, Operation};

    use super::*;

    fn program(operations: usize) -> Program {
        let mut list = vec![Operation::Null; 1];
        list.resize(operations, Operation::IsNull);
        Program::build(list).unwrap()
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
        assert_eq!(expressions.find("1").unwrap().len(), PROGRAM_OPERATIONS_MAX, "one text, one program");
        assert_eq!(expressions.table.read().texts.len(), fitting);
    }
}
