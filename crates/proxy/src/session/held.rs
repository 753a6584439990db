//! What holds a session to its backend: what the configuration says of it, and letting go when others wait.

use config::{PoolMode, SessionState};
use router::PinReason;

use super::Session;
use crate::engine::Habit;
use crate::registry::{Flag, Registry};

/// Sessions wait for a backend: those that are held for what they may ask of sequences are asked to let go.
pub(super) fn ask_to_yield(registry: &Registry) {
    let clients = registry.clients();
    let held = clients.iter().filter(|client| client.pin() == Some(PinReason::Sequence));
    held.for_each(|client| client.raise(Flag::Renew));
}

impl Session {
    /// What becomes of state that cannot be moved. With session pooling it need not be moved.
    pub(super) fn session_state(&mut self) -> SessionState {
        match self.mode {
            PoolMode::Session => SessionState::Pin,
            _ => self.config.get().session_state,
        }
    }

    /// How sessions like this one use sequences. Its backend is its own with session pooling, and nobody is held for
    /// state that is ignored or refused.
    pub(super) fn habit(&mut self) -> Habit {
        let held = self.mode != PoolMode::Session && self.session_state() == SessionState::Pin;
        match self.habits.habit() {
            habit @ (Habit::Unknown | Habit::Behind) if !held => {
                if habit == Habit::Behind {
                    Habit::Within
                } else {
                    Habit::Silent
                }
            }
            habit => habit,
        }
    }

    /// Others wait for a backend.
    pub(super) fn yield_if_asked(&mut self) {
        if self.client.entry.has(Flag::Renew) && self.mode != PoolMode::Session {
            self.client.entry.lower(Flag::Renew);
            if self.engine.yield_sequences() {
                self.habits.held_in_vain();
            }
        }
    }
}
