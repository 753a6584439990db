//! Observability and the few shared mechanisms every crate needs: metrics, logs, published state, the one
//! door for tasks, back-off.
//!
//! This is the only crate that may hold `static`s with interior mutability.

pub mod backoff;
pub mod logging;
pub mod metrics;
pub mod published;
pub mod sparse;
pub mod tasks;

pub use backoff::Backoff;
pub use metrics::{Metrics, NodeMetrics};
pub use published::{Published, Reader};
pub use sparse::Sparse;
pub use tasks::{Tasks, off_thread};
