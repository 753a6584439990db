//! A directory checks a password: by a bind as a name made from the user's, or by a search and a bind as what it found.
//!
//! PostgreSQL: `CheckLDAPAuth()` in src/backend/libpq/auth.c. The one who asks is bounded by a time; servers are tried
//! in their order until one answers.

use std::time::Duration;

use config::hba::{Ldap, LdapScheme};
use ldap3::result::Result as LdapResult;
use ldap3::{
    Ldap as Handle, LdapConnAsync, LdapConnSettings, LdapError, Scope, SearchEntry, SearchOptions,
    ldap_escape,
};
use tokio::time::timeout;

use super::outside::Answer;

/// How long one server may take for one connection.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// "Invalid credentials" (RFC 4511, appendix A).
const INVALID_CREDENTIALS: u32 = 49;

/// Asks.
pub(super) async fn check(ldap: &Ldap, user: &str, password: &str) -> Answer {
    // A search filter with these could mean something else.
    if ldap.base.is_some() && user.contains(['*', '(', ')', '\\', '/', '\0']) {
        return Answer::Wrong("invalid character in the user's name".to_owned());
    }
    let mut failure = Answer::Failed("no server".to_owned());
    for server in &ldap.servers {
        let asking = Box::pin(ask(ldap, server, user, password));
        failure = match timeout(SERVER_TIMEOUT, asking).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) => Answer::Failed(format!("{server}: {error}")),
            Err(_) => Answer::Failed(format!("{server}: no answer within {SERVER_TIMEOUT:?}")),
        };
    }
    failure
}

async fn ask(ldap: &Ldap, server: &str, user: &str, password: &str) -> LdapResult<Answer> {
    let Some(base) = &ldap.base else {
        let name = format!("{}{user}{}", ldap.prefix, ldap.suffix);
        return bind(ldap, server, &name, password).await;
    };
    match search(ldap, server, base, user).await? {
        Ok(name) => bind(ldap, server, &name, password).await,
        Err(answer) => Ok(answer),
    }
}

/// The name of the one entry that is the user's.
async fn search(ldap: &Ldap, server: &str, base: &str, user: &str) -> LdapResult<Result<String, Answer>> {
    let filter = match (&ldap.search_filter, &ldap.search_attribute) {
        (Some(filter), _) => filter.replace("$username", &ldap_escape(user)),
        (None, attribute) => format!("({}={})", attribute.as_deref().unwrap_or("uid"), ldap_escape(user)),
    };
    with_server(ldap, server, async |handle: &mut Handle| {
        let password = ldap.bind_password.as_ref().map_or("", config::Masked::expose);
        handle.simple_bind(&ldap.bind_dn, password).await?.success()?;
        let two = SearchOptions::new().sizelimit(2);
        let found =
            handle.with_search_options(two).search(base, Scope::Subtree, &filter, vec!["1.1"]).await?;
        let mut entries = found.0.into_iter().filter(|entry| !entry.is_ref());
        Ok(match (entries.next(), entries.next()) {
            (Some(entry), None) => Ok(SearchEntry::construct(entry).dn),
            (Some(_), Some(_)) => Err(Answer::Wrong("more than one entry is the user's".to_owned())),
            (None, _) => match found.1.success() {
                Ok(_) => Err(Answer::Wrong("no entry is the user's".to_owned())),
                Err(error) => return Err(error),
            },
        })
    })
    .await
}

/// Whether the directory lets that name in with that password.
async fn bind(ldap: &Ldap, server: &str, name: &str, password: &str) -> LdapResult<Answer> {
    let bound = with_server(ldap, server, async |handle: &mut Handle| {
        handle.simple_bind(name, password).await?.success()?;
        Ok(())
    });
    match bound.await {
        Ok(()) => Ok(Answer::Right),
        Err(LdapError::LdapResult { result }) if result.rc == INVALID_CREDENTIALS => {
            Ok(Answer::Wrong(format!("{name} is not let in by {server}")))
        }
        Err(error) => Err(error),
    }
}

/// Connects, does the work, and hangs up.
async fn with_server<T>(
    ldap: &Ldap,
    server: &str,
    work: impl AsyncFnOnce(&mut Handle) -> LdapResult<T>,
) -> LdapResult<T> {
    let (scheme, port) = match ldap.scheme {
        LdapScheme::Ldap => ("ldap", ldap.port.unwrap_or(389)),
        LdapScheme::Ldaps => ("ldaps", ldap.port.unwrap_or(636)),
    };
    let settings = LdapConnSettings::new().set_conn_timeout(SERVER_TIMEOUT).set_starttls(ldap.tls);
    let url = format!("{scheme}://{server}:{port}");
    let (connection, mut handle) = LdapConnAsync::with_settings(settings, &url).await?;
    tokio::select! {
        done = work(&mut handle) => done,
        ended = connection.drive() => Err(ended.err().unwrap_or_else(|| LdapError::EndOfStream)),
    }
}
