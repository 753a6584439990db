//! One GET from the HTTP endpoint of a running pgweir: blocking, bounded in time and size.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};
use config::Config;

/// How long a connection, and each step of the answer, may take.
const STEP: Duration = Duration::from_secs(5);
/// The largest answer: metrics of many nodes.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;

/// The body of the answer to `GET path`.
///
/// # Errors
/// `metrics_listen` is off, nobody listens there, or the answer is not 200.
pub(crate) fn get(config: &Config, path: &str) -> anyhow::Result<String> {
    let Some(listen) = &config.metrics_listen else { bail!("metrics_listen is off") };
    let host = match listen.host.as_str() {
        "*" | "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    let mut stream = connect(host, listen.port).with_context(|| format!("nobody answers on {listen}"))?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    // 1.0: the answer ends with the connection, in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: pgweir\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream
        .take(MAX_ANSWER)
        .read_to_string(&mut answer)
        .with_context(|| format!("no answer from {listen}"))?;
    body(&answer).with_context(|| format!("{listen}{path}"))
}

fn connect(host: &str, port: u16) -> anyhow::Result<TcpStream> {
    let mut last = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, STEP) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => bail!("{host} has no address"),
    }
}

fn body(answer: &str) -> anyhow::Result<String> {
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.split(' ').nth(1).context("the answer is not HTTP")?;
    if status != "200" {
        bail!("the answer is {status}")
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_of_a_good_answer() {
        assert_eq!(body("HTTP/1.0 200 OK\r\nA: b\r\n\r\nhello").unwrap(), "hello");
        for bad in ["", "hello", "HTTP/1.0 404 Not Found\r\n\r\nhello", "HTTP/1.0 200 OK\r\n"] {
            assert!(body(bad).is_err(), "{bad}");
        }
    }
}
