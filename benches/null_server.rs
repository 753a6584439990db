//! A PostgreSQL server that answers pgbench's `-S` from memory: what is left of a measurement through it is the
//! proxy's and the load's.
//!
//! `null_server PORT UPSTREAM_PORT` listens on loopback. Everything else than that one statement (logging in, what a
//! proxy asks of its nodes) goes to a real server at UPSTREAM_PORT, so it looks like one. By the simple protocol only.
//! Built by `make bench` with plain `rustc`: nothing but the standard library, one blocking thread a connection.

use std::env;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// What the statement begins with.
const KNOWN: &[u8] = b"SELECT abalance FROM pgbench_accounts";

/// One row of one int4, as PostgreSQL sends it.
fn answer() -> Vec<u8> {
    let mut out = Vec::new();
    let mut column = b"abalance\0".to_vec();
    // Table and column, int4 (23) of four bytes, no modifier, as text.
    column.extend([0; 6]);
    column.extend(23_u32.to_be_bytes());
    column.extend(4_u16.to_be_bytes());
    column.extend((-1_i32).to_be_bytes());
    column.extend(0_u16.to_be_bytes());
    put(&mut out, b'T', &[&1_u16.to_be_bytes()[..], &column].concat());
    put(&mut out, b'D', &[&1_u16.to_be_bytes()[..], &1_u32.to_be_bytes(), b"0"].concat());
    put(&mut out, b'C', b"SELECT 1\0");
    put(&mut out, b'Z', b"I");
    out
}

fn put(out: &mut Vec<u8>, tag: u8, body: &[u8]) {
    out.push(tag);
    out.extend(u32::try_from(body.len() + 4).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(body);
}

/// The length of a message without its type byte.
fn length(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.get(..4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(bytes)).ok()
}

/// Copies one whole message; its type byte, and what it begins with.
fn relay_message(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<(u8, u8)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let len = length(&head[1..]).unwrap_or(4).max(4);
    let mut message = head.to_vec();
    message.resize(len + 1, 0);
    from.read_exact(&mut message[5..])?;
    to.write_all(&message)?;
    Ok((head[0], message.get(8).copied().unwrap_or_default()))
}

/// The start-up packet, and what the server says to it. TLS is declined.
fn log_in(client: &mut TcpStream, server: &mut TcpStream) -> io::Result<bool> {
    loop {
        let mut head = [0; 4];
        client.read_exact(&mut head)?;
        let mut packet = head.to_vec();
        packet.resize(length(&head).unwrap_or(8).max(8), 0);
        client.read_exact(&mut packet[4..])?;
        match packet[4..8] {
            // SSLRequest and GSSENCRequest.
            [0x04, 0xd2, 0x16, 0x2f | 0x30] => client.write_all(b"N")?,
            // A cancel request ends with its packet.
            [0x04, 0xd2, 0x16, 0x2e] => {
                server.write_all(&packet)?;
                return Ok(false);
            }
            _ => {
                server.write_all(&packet)?;
                break;
            }
        }
    }
    loop {
        match relay_message(server, client)? {
            (b'Z', _) => return Ok(true),
            // Authentication that wants an answer: not AuthenticationOk, and not SCRAM's last word.
            (b'R', 1..=11) => drop(relay_message(client, server)?),
            _ => {}
        }
    }
}

fn serve(mut client: TcpStream, upstream: u16, answer: &[u8]) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", upstream))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    if !log_in(&mut client, &mut server)? {
        return Ok(());
    }
    let mut buffer = vec![0; 64 * 1024];
    let mut filled = 0;
    loop {
        let count = client.read(&mut buffer[filled..])?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        let mut at = 0;
        let mut out = Vec::new();
        while let Some(len) = buffer[at..filled].get(1..).and_then(length) {
            let Some(message) = buffer[at..filled].get(..=len) else { break };
            let ends = matches!(message[0], b'Q' | b'S');
            if message[0] == b'Q' && message[5..].starts_with(KNOWN) {
                out.extend_from_slice(answer);
            } else {
                client.write_all(&std::mem::take(&mut out))?;
                server.write_all(message)?;
                while ends && relay_message(&mut server, &mut client)?.0 != b'Z' {}
            }
            at += len + 1;
        }
        client.write_all(&out)?;
        buffer.copy_within(at..filled, 0);
        filled -= at;
        if filled == buffer.len() {
            buffer.resize(2 * filled, 0);
        }
    }
}

fn main() -> io::Result<()> {
    let ports: Vec<u16> = env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [port, upstream] = ports[..] else {
        return Err(io::Error::other("usage: null_server PORT UPSTREAM_PORT"));
    };
    let answer: &[u8] = Vec::leak(answer());
    for client in TcpListener::bind(("127.0.0.1", port))?.incoming() {
        let client = client?;
        // A connection that ends is nobody's fault.
        thread::spawn(move || drop(serve(client, upstream, answer)));
    }
    Ok(())
}
