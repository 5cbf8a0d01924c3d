//! Reading messages: pulls, held pulls, filters, and the offsets that consumers commit.
//!
//! [`Puller`] in `handler` answers PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). `admit` decides whether a pull is served
//! and through which filter, `answer` encodes the result of the store. A pull that finds nothing waits: `held_pulls` is the table
//! of such pulls (over `held_table`, like every table of pulls that wait; `woken_line` has those that very many messages woke), `waiting` decides for how long, and serves or ends them. A pull whose group has a limit goes through `pacing`; one that a function
//! filters stands in `function_lines` until Python takes it (`function`). `expressions` keeps the filters that Python
//! compiled for pulls that bring their own, `members` the subscriptions that each member's heartbeats announced. `offsets` is the table of committed offsets, `offset_requests` answers the
//! requests about it (14, 15) and about a queue's ends (29, 30, 31), `reset` sends running consumers elsewhere, `visible_end` knows which
//! offsets can be true, `signs_of_life` knows whether somebody reads a queue.
//!
//! Called by `net::route`, by the store when messages arrive, by the plane's thread when a wait is over, and by Python.
//! Nothing here waits or calls Python.

pub(crate) mod admit;
pub(crate) mod answer;
pub(crate) mod expressions;
pub(crate) mod function;
pub(crate) mod function_lines;
pub(crate) mod handler;
pub(crate) mod held_pulls;
pub(crate) mod held_table;
pub(crate) mod members;
pub(crate) mod offset_requests;
pub(crate) mod offsets;
pub(crate) mod pacing;
pub(crate) mod reset;
pub(crate) mod signs_of_life;
pub(crate) mod visible_end;
pub(crate) mod waiting;
pub(crate) mod woken_line;

pub use handler::Puller;
