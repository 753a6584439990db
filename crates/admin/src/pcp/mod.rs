//! PCP: Pgpool-II's control protocol, so that its `pcp_*` programs work unchanged.
//!
//! Who may come in is in the file of `pcp_conf_file`, lines `user:md5(password)`; it is read at each login. Whoever is
//! in it may do everything, as with Pgpool-II. Commands are carried out by the console: one way, one set of words.
//!
//! Invariants: frames, connections and waits are bounded; what fails is answered with an error, never with success.

mod answer;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use protocol::md5::Md5Hash;
use telemetry::{Sparse, Tasks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::console::AdminConsole;
use crate::seats::{Seat, Seats};
use crate::view::AdminView;
use wire::{Frame, Refused};

/// Connections at a time; one more ends the oldest that has not logged in.
const MAX_CONNECTIONS: usize = 32;
/// A client must have logged in by then.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// A client may be silent so long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Pause after an accept that failed, and after a login that did.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks a user's secret up: the md5 hash of the password, in hexadecimal digits.
pub type SecretOf = Arc<dyn Fn(&str) -> io::Result<Option<String>> + Send + Sync>;

/// What PCP's answers are made from.
#[derive(Clone)]
pub struct Pcp {
    view: Arc<dyn AdminView>,
    console: AdminConsole,
    secret_of: SecretOf,
    salt: fn() -> [u8; 4],
}

/// Reads lines `user:md5hash` and gives the hash of `user`; `#` begins a comment.
#[must_use]
pub fn secret_in(text: &str, user: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| *name == user)
        .map(|(_, hash)| hash.to_owned())
}

impl Pcp {
    /// Answers from `view`, acts through `console`. `salt` gives random bytes.
    #[must_use]
    pub fn new(
        view: Arc<dyn AdminView>,
        console: AdminConsole,
        secret_of: SecretOf,
        salt: fn() -> [u8; 4],
    ) -> Self {
        Self { view, console, secret_of, salt }
    }

    /// Serves on `listener` until the future is dropped.
    pub async fn serve(self, listener: TcpListener, tasks: Tasks) {
        let mut lines = Sparse::default();
        let seats = Seats::new(MAX_CONNECTIONS);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => match seats.take() {
                    Some(seat) => {
                        tasks.spawn("pcp connection", self.clone().connection(stream, seat));
                    }
                    None => tracing::warn!("too many PCP clients: one is turned away"),
                },
                Err(error) => {
                    if let Some(left_out) = lines.admit(Instant::now()) {
                        tracing::warn!(%error, left_out, "cannot accept a PCP connection");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connection(self, stream: TcpStream, seat: Seat) {
        let peer = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
        let mut client = Client { stream, read: BytesMut::new() };
        let login = seat.hold(tokio::time::timeout(LOGIN_TIMEOUT, self.log_in(&mut client))).await;
        let user = match login {
            Some(Ok(Ok(user))) => user,
            Some(Ok(Err(error))) => return tracing::debug!(peer, %error, "PCP login failed"),
            Some(Err(_)) => return tracing::debug!(peer, "PCP login took too long"),
            None => return tracing::debug!(peer, "PCP login made room for a new one"),
        };
        seat.keep();
        tracing::info!(peer, user, "PCP client connected");
        if let Err(error) = self.converse(&mut client, &user).await {
            tracing::debug!(peer, user, %error, "PCP connection ended");
        }
    }

    /// Salt, then the answer to it.
    async fn log_in(&self, client: &mut Client) -> io::Result<String> {
        let mut salt = None;
        loop {
            let Some(frame) = client.frame().await? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            match (frame.kind, salt) {
                (b'M', _) => {
                    let fresh = (self.salt)();
                    salt = Some(fresh);
                    client.send(wire::frame(b'm', &[&fresh])).await?;
                }
                (b'R', Some(salt)) => match self.check(&frame, salt) {
                    Ok(user) => {
                        client.send(wire::frame(b'r', &[b"AuthenticationOK\0"])).await?;
                        return Ok(user);
                    }
                    Err(refused) => {
                        tokio::time::sleep(PAUSE).await;
                        tracing::warn!(reason = %refused.detail, "PCP login refused");
                        client.send(refused.frame("FATAL")).await?;
                        return Err(io::ErrorKind::PermissionDenied.into());
                    }
                },
                _ => {
                    let refused = Refused::new("authentication failed", "connection not authorized");
                    client.send(refused.frame("FATAL")).await?;
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
            }
        }
    }

    /// The same words for an unknown user and a wrong password.
    fn check(&self, frame: &Frame, salt: [u8; 4]) -> Result<String, Refused> {
        let refused = |detail: &str| Refused::new("authentication failed", detail);
        let mut fields = frame.fields();
        let (user, response) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let secret = (self.secret_of)(&user).map_err(|error| {
            tracing::error!(%error, "cannot read pcp_conf_file");
            refused("the file of pcp_conf_file cannot be read")
        })?;
        let known = secret.unwrap_or_default();
        let secret = Md5Hash::from_password(user.as_bytes(), known.as_bytes());
        let right = secret.verify(salt, format!("md5{response}").as_bytes());
        if right && !known.is_empty() {
            Ok(user)
        } else {
            Err(refused("username and/or password does not match"))
        }
    }

    async fn converse(&self, client: &mut Client, user: &str) -> io::Result<()> {
        loop {
            let Ok(frame) = tokio::time::timeout(IDLE_TIMEOUT, client.frame()).await else { return Ok(()) };
            let Some(frame) = frame?.filter(|frame| frame.kind != b'X') else { return Ok(()) };
            let answer = self.answer(&frame, user).await.unwrap_or_else(|refused| refused.frame("ERROR"));
            client.send(answer).await?;
        }
    }
}

struct Client {
    stream: TcpStream,
    read: BytesMut,
}

impl Client {
    /// The next frame; none at the end of the stream.
    async fn frame(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = wire::take(&mut self.read)? {
                return Ok(Some(frame));
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.stream.write_all(&bytes).await
    }
}
