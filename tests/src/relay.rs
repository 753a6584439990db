//! A relay between pgweir and a node that splits what the node sends at any byte.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;

/// A running relay; its threads end with their connections, or with the test process.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    chunk: Arc<AtomicUsize>,
    delay_us: Arc<AtomicUsize>,
}

impl Relay {
    /// Starts relaying to a local port.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start(target: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let chunk = Arc::new(AtomicUsize::new(usize::MAX));
        let delay_us = Arc::new(AtomicUsize::new(0));
        let (size, delay) = (Arc::clone(&chunk), Arc::clone(&delay_us));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let _unusable = join(client, server, &size, &delay);
            }
        });
        Ok(Self { port, chunk, delay_us })
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Splits what the node sends into packets of `bytes`, from the next read on.
    pub fn set_chunk(&self, bytes: usize) {
        self.chunk.store(bytes.max(1), Ordering::Relaxed);
    }

    /// Waits before each connection and each packet is passed to the node.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_us.store(usize::try_from(delay.as_micros()).unwrap_or(usize::MAX), Ordering::Relaxed);
    }
}

fn join(
    client: TcpStream,
    server: TcpStream,
    chunk: &Arc<AtomicUsize>,
    delay: &Arc<AtomicUsize>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let whole = Arc::new(AtomicUsize::new(usize::MAX));
    let none = Arc::new(AtomicUsize::new(0));
    let (up, down) = ((client.try_clone()?, server.try_clone()?), (server, client));
    let (delay, chunk) = (Arc::clone(delay), Arc::clone(chunk));
    std::thread::spawn(move || pump(up.0, up.1, &whole, &delay));
    std::thread::spawn(move || pump(down.0, down.1, &chunk, &none));
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, chunk: &AtomicUsize, delay_us: &AtomicUsize) {
    let mut buffer = vec![0u8; 65536];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let wait = delay_us.load(Ordering::Relaxed);
        if wait > 0 {
            std::thread::sleep(Duration::from_micros(wait as u64));
        }
        for part in buffer[..n].chunks(chunk.load(Ordering::Relaxed)) {
            if to.write_all(part).is_err() {
                return;
            }
        }
    }
    let _gone = to.shutdown(std::net::Shutdown::Write);
}
