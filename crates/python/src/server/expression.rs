//! Compiled expressions: from the control plane's list of operations to a program.

use std::collections::HashMap;

use metaq_store::Program;
use metaq_store::expression::Operation;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// One operation of `metaq.settings`: its name and its operand.
pub type Pair = (String, Operand);

#[derive(FromPyObject)]
pub enum Operand {
    #[pyo3(transparent)]
    Whole(i64),
    #[pyo3(transparent)]
    Double(f64),
    #[pyo3(transparent)]
    Text(String),
    #[pyo3(transparent)]
    Texts(Vec<String>),
    #[pyo3(transparent)]
    Nothing(Option<Py<PyAny>>),
}

/// The error says what is wrong with the list. Clients cannot cause it, because Python checks expressions first.
pub fn build(pairs: Vec<Pair>) -> Result<Program, String> {
    let operations = pairs.into_iter().map(operation).collect::<Result<_, _>>()?;
    Program::build(operations).map_err(|error| error.to_string())
}

fn operation((name, operand): Pair) -> Result<Operation, String> {
    Ok(match (name.as_str(), operand) {
        ("null", Operand::Nothing(None)) => Operation::Null,
        ("true", Operand::Nothing(None)) => Operation::Bool(true),
        ("false", Operand::Nothing(None)) => Operation::Bool(false),
        ("integer", Operand::Whole(value)) => {
            Operation::Integer(value.try_into().map_err(|_| format!("{value} does not fit into 32 bits"))?)
        }
        ("long", Operand::Whole(value)) => Operation::Long(value),
        ("double", Operand::Double(value)) => Operation::Double(value),
        ("string", Operand::Text(text)) => Operation::Text(text),
        ("property", Operand::Text(name)) => Operation::Property(name),
        ("negate", Operand::Nothing(None)) => Operation::Negate,
        ("truth", Operand::Nothing(None)) => Operation::Truth,
        ("not", Operand::Nothing(None)) => Operation::Not,
        ("is_null", Operand::Nothing(None)) => Operation::IsNull,
        ("and", Operand::Nothing(None)) => Operation::And,
        ("or", Operand::Nothing(None)) => Operation::Or,
        ("equal", Operand::Nothing(None)) => Operation::Equal,
        ("greater", Operand::Nothing(None)) => Operation::Greater,
        ("greater_or_equal", Operand::Nothing(None)) => Operation::GreaterOrEqual,
        ("less", Operand::Nothing(None)) => Operation::Less,
        ("less_or_equal", Operand::Nothing(None)) => Operation::LessOrEqual,
        ("between", Operand::Nothing(None)) => Operation::Between,
        ("not_between", Operand::Nothing(None)) => Operation::NotBetween,
        ("in", Operand::Texts(texts)) => Operation::In(texts),
        ("not_in", Operand::Texts(texts)) => Operation::NotIn(texts),
        ("contains", Operand::Text(text)) => Operation::Contains(text),
        ("not_contains", Operand::Text(text)) => Operation::NotContains(text),
        ("starts_with", Operand::Text(text)) => Operation::StartsWith(text),
        ("not_starts_with", Operand::Text(text)) => Operation::NotStartsWith(text),
        ("ends_with", Operand::Text(text)) => Operation::EndsWith(text),
        ("not_ends_with", Operand::Text(text)) => Operation::NotEndsWith(text),
        _ => return Err(format!("there is no operation {name:?} with this operand")),
    })
}

#[pyclass(frozen, module = "metaq._core")]
pub struct Expression {
    program: Program,
}

#[pymethods]
impl Expression {
    #[new]
    #[pyo3(signature = (program))]
    fn new(program: Vec<Pair>) -> PyResult<Self> {
        Ok(Expression { program: build(program).map_err(PyValueError::new_err)? })
    }

    #[pyo3(signature = (properties))]
    fn matches(&self, properties: HashMap<String, String>) -> bool {
        let mut bytes = Vec::new();
        for (name, value) in &properties {
            metaq_wire::properties::push(&mut bytes, name, value);
        }
        self.program.matches(&bytes)
    }
}
