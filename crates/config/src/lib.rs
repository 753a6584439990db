//! The configuration: files to a validated [`Config`], and the [`Plan`] from one to the next.
//!
//! [`KEYS`] is the one table of keys: parsing, `SHOW CONFIG`, the plan of a reload, etc/pgweir.yaml and
//! docs/configuration.md are made from it. A configuration is taken whole or refused whole, with file, line,
//! key, what was found and what was expected.
//!
//! Invariants: only [`load`] touches files; only `yaml.rs` knows the YAML library; no secret is ever printed,
//! by `Debug`, `Display`, an error or a row.

mod check;
mod destination;
mod effective;
mod error;
mod files;
mod fill;
pub mod hba;
mod key;
mod load;
mod own;
mod pattern;
mod plan;
pub mod pool_key;
mod render;
pub mod secrets;
mod sections;
mod suggest;
mod table;
mod units;
mod value;
mod words;
mod yaml;

pub use destination::LogDestination;
pub use effective::{HealthCheck, Row};
pub use error::{ConfigError, ConfigErrors, Warning};
pub use key::{Effect, Key, Status};
pub use load::{load, parse};
pub use own::SESSION_KEYS;
pub use pattern::{Matcher, Pattern, Redirect, Target as RedirectTarget};
pub use plan::{Change, NodeChange, Plan};
pub use render::{reference, sample};
pub use sections::{
    ADMIN_DATABASES, BACKEND_KEYS, Backend, DATABASE_KEYS, DatabaseOverrides, USER_KEYS, UserOverrides,
};
pub use suggest::nearest_key;
pub use table::{Config, KEYS};
pub use value::{HostPort, Limits, Masked};
pub use words::{
    BackendFlag, BackendSslMode, ClusteringMode, Consistency, DisableLoadBalanceOnWrite, FailoverMode,
    LoadBalance, LogFormat, LogLevel, PoolMode, SessionState, Ssl,
};
