//! One question to the system's authentication modules (PAM): may this user come in with this password?
//!
//! It is asked in a process of its own (`pgweir pam-helper`), for modules are code of others: they block, leave
//! descriptors open, change the user id, are not made for threads, and a few crash. A process can be ended, a thread
//! cannot. The library is loaded when it is needed, so that pgweir builds and starts where there is none.
//!
//! The only crate with unsafe code: what it calls is `pam_start`, `pam_set_item`, `pam_authenticate`, `pam_acct_mgmt`,
//! `pam_strerror` and `pam_end`, as `<security/pam_appl.h>` of Linux-PAM declares them.
//!
//! PostgreSQL: `CheckPAMAuth()` in src/backend/libpq/auth.c.

mod ffi;

use std::ffi::CString;

/// The service that PostgreSQL asks when none is named (`PGSQL_PAM_SERVICE`).
pub const DEFAULT_SERVICE: &str = "postgresql";

/// Who wants to come in.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The service, a file of `/etc/pam.d`.
    pub service: &'a str,
    /// The user.
    pub user: &'a str,
    /// The password; modules may ask for nothing.
    pub password: &'a [u8],
    /// The client's address, where it has one.
    pub remote_host: Option<&'a str>,
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PamError {
    /// A name or the password cannot be said in C.
    #[error("{0} holds a NUL byte")]
    Nul(&'static str),
    /// There is no library, or it is not one.
    #[error("libpam cannot be used: {0}")]
    Library(String),
    /// The modules say no.
    #[error("{0}")]
    Refused(String),
    /// They could not be asked.
    #[error("{step} failed: {text}")]
    Failed {
        /// The function.
        step: &'static str,
        /// What the library says.
        text: String,
    },
}

impl PamError {
    /// Whether the answer is about the user and the password, not about the modules.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Nul(_))
    }
}

/// Asks. Blocks for as long as the modules like; whoever calls this ends the process when it takes too long.
///
/// # Errors
/// When they say anything but yes.
pub fn ask(question: &Question<'_>) -> Result<(), PamError> {
    let text = |what, bytes: &[u8]| CString::new(bytes).map_err(|_| PamError::Nul(what));
    let service = text("the service", question.service.as_bytes())?;
    let user = text("the user's name", question.user.as_bytes())?;
    let password = text("the password", question.password)?;
    let host = question.remote_host.map(|host| text("the client's address", host.as_bytes())).transpose()?;
    let library = ffi::Library::load().map_err(PamError::Library)?;
    let mut transaction = library.start(&service, &user, password)?;
    if let Some(host) = host {
        transaction.set_remote_host(&host)?;
    }
    transaction.authenticate()?;
    transaction.account()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_is_not_there_lets_nobody_in() {
        let question =
            Question { service: "no-such-service-of-pgweir", user: "joe", password: b"x", remote_host: None };
        assert!(ask(&question).is_err());
    }

    #[test]
    fn what_c_would_cut_is_refused() {
        for (user, password) in [("jo\0e", &b"x"[..]), ("joe", b"x\0y")] {
            let asked = ask(&Question { service: "login", user, password, remote_host: Some("192.0.2.1") });
            assert!(matches!(asked, Err(PamError::Nul(_))), "{asked:?}");
        }
    }
}
