//! Asks the primary how far it has written and the standbys how far they have replayed, so that sessions
//! know which standby shows what they have written.

use std::sync::Arc;

use tokio::sync::Notify;

/// Rung by sessions that wait for a standby to catch up.
pub(crate) type Wish = Arc<Notify>;

/// What sessions ring.
pub(crate) fn wish(wish: &Wish) -> Arc<dyn Fn() + Send + Sync> {
    let wish = Arc::clone(wish);
    Arc::new(move || wish.notify_one())
}
