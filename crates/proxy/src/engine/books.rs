//! What a backend carries between its users, and what it said of its parameters that nothing known is behind.

use std::sync::Arc;

use protocol::tracker::Owner;

use super::Remembers;
use crate::prepared::Prepared;
use crate::settings::{Parameters, Settings};

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Books {
    /// The statements it holds.
    pub prepared: Prepared,
    /// The settings it was brought to.
    pub settings: Arc<Settings>,
    /// What it reported.
    pub parameters: Parameters,
    /// Of which of them it reported another value lately.
    pub(crate) reported: Vec<Reported>,
    /// Whose values of sequences it remembers.
    pub remembers: Remembers,
    /// It may have parameters of whatever names that nobody has told of.
    pub unlisted: bool,
}

/// A parameter that was reported.
#[derive(Debug)]
pub(crate) struct Reported {
    name: String,
    /// Its value before the client's statements; `None` when a statement of ours has set it.
    was: Option<String>,
}

/// Parameters that have other values than what is known would give them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// No setting of the client is behind them: the server's default is another one now, or a statement set them
    /// where it does not show, in a function.
    pub unset: Vec<(String, String)>,
    /// The client has set them before, and a statement set them anew where it does not show.
    pub reset: Vec<(String, String)>,
}

impl News {
    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unset.is_empty() && self.reset.is_empty()
    }
}

impl Books {
    /// The server reported a parameter, in answer to a statement of `owner`.
    pub fn report(&mut self, name: &str, value: &str, owner: Owner) {
        let before = self.parameters.get(name);
        if before == Some(value) {
            return;
        }
        let was = (owner == Owner::Client).then(|| before.unwrap_or_default().to_owned());
        self.parameters.set(name, value);
        match self.reported.iter_mut().find(|known| known.name == name) {
            Some(known) if was.is_none() || known.was.is_none() => known.was = was,
            Some(_) => {}
            None => self.reported.push(Reported { name: name.to_owned(), was }),
        }
    }

    /// It has reported something.
    #[must_use]
    pub fn has_reported(&self) -> bool {
        !self.reported.is_empty()
    }

    /// What was reported that nothing known is behind; `changed` says what the client has set in statements that are
    /// followed.
    pub(super) fn take_news(&mut self, changed: impl Fn(&str) -> bool) -> News {
        let Self { settings, parameters, reported, .. } = self;
        let mut news = News::default();
        for Reported { name, was } in reported.drain(..) {
            let Some(value) = parameters.get(&name).filter(|value| was.is_some_and(|was| was != *value))
            else {
                // As before, or of our making.
                continue;
            };
            let (known, value) = (name.to_ascii_lowercase(), value.to_owned());
            if settings.is_silent_on(&known) {
                news.unset.push((name, value));
            } else if settings.get(&known).is_some() && !changed(&known) {
                news.reset.push((name, value));
            }
        }
        news
    }
}
