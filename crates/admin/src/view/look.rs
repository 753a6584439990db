//! What the surfaces may look at.

use std::sync::Arc;
use std::time::SystemTime;

use cluster::NodeId;
use config::Config;

use super::{
    ClientRow, DatabaseStats, EventRow, HealthRow, MemoryRow, NodeRow, PoolRow, ProcessInfo, ProcessState,
    RouteRow, ServerRow, StatementRow,
};

/// A snapshot of the process; each call is cheap and does not block.
pub trait AdminView: Send + Sync {
    /// The process.
    fn process(&self) -> ProcessInfo;
    /// What it is doing.
    fn state(&self) -> ProcessState;
    /// The configuration in force.
    fn config(&self) -> Arc<Config>;
    /// The time now, for ages.
    fn now(&self) -> SystemTime;
    /// The topology's epoch.
    fn epoch(&self) -> u64;
    /// The nodes, in the order of their ids.
    fn nodes(&self) -> Vec<NodeRow>;
    /// What was counted for each database that was used, by name.
    fn stats(&self) -> Vec<DatabaseStats>;
    /// Whether the clients of a database get no backend.
    fn is_paused(&self, database: &str) -> bool;
    /// Whether new clients of a database are turned away.
    fn is_disabled(&self, database: &str) -> bool;
    /// The checks of the nodes, in the order of their ids.
    fn health(&self) -> Vec<HealthRow>;
    /// What has happened to the nodes and the process, the oldest first.
    fn events(&self) -> Vec<EventRow>;
    /// Statements sent by node and reason; reasons that never occurred are left out.
    fn routes(&self) -> Vec<RouteRow>;
    /// What was counted for each statement, what took longest in all first.
    fn statements(&self) -> Vec<StatementRow>;
    /// What the memory is used for.
    fn memory(&self) -> Vec<MemoryRow>;
    /// The pools.
    fn pools(&self) -> Vec<PoolRow>;
    /// The clients, those of the admin database included.
    fn clients(&self) -> Vec<ClientRow>;
    /// The connections to the nodes.
    fn servers(&self) -> Vec<ServerRow>;
    /// The node that the session's reads go to (or went to last), for `load_balance_node`.
    fn load_balance_node(&self, session: u32) -> Option<NodeId>;
}
