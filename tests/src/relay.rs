//! A relay between pgweir and a node that splits what the node sends at any byte, holds back what it is sent, and can be
//! cut as a network is: nothing passes, nobody is told.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;

/// The code of a CancelRequest, behind its length.
const CANCEL: [u8; 4] = 80_877_102u32.to_be_bytes();

/// A running relay; its threads end with their connections, or with the test process.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    knobs: Arc<Knobs>,
}

/// What a relay does to what passes.
#[derive(Debug, Default)]
struct Knobs {
    /// 0 is any size.
    chunk: AtomicUsize,
    delay_us: AtomicUsize,
    cancel_delay_us: AtomicUsize,
    cancels: AtomicUsize,
    cut: AtomicBool,
}

impl Relay {
    /// Starts relaying to a local port.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start(target: u16) -> Result<Self> {
        Self::listen(("127.0.0.1", 0), target)
    }

    /// As [`Relay::start`], on an address of one's choice.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub fn listen(at: (&str, u16), target: u16) -> Result<Self> {
        let listener = TcpListener::bind(at)?;
        let port = listener.local_addr()?.port();
        let knobs: Arc<Knobs> = Arc::default();
        let shared = Arc::clone(&knobs);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let _unusable = join(client, server, &shared);
            }
        });
        Ok(Self { port, knobs })
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Splits what the node sends into packets of `bytes`, from the next read on.
    pub fn set_chunk(&self, bytes: usize) {
        self.knobs.chunk.store(bytes.max(1), Ordering::Relaxed);
    }

    /// Waits before each connection and each packet is passed to the node.
    pub fn set_delay(&self, delay: Duration) {
        self.knobs.delay_us.store(micros(delay), Ordering::Relaxed);
    }

    /// Waits before a CancelRequest is passed to the node.
    pub fn set_cancel_delay(&self, delay: Duration) {
        self.knobs.cancel_delay_us.store(micros(delay), Ordering::Relaxed);
    }

    /// Lets nothing through any more, in either direction, be it bytes or the end of a connection: new connections are
    /// accepted and hear nothing. What was sent meanwhile arrives when the way is whole again.
    pub fn cut(&self, cut: bool) {
        self.knobs.cut.store(cut, Ordering::Relaxed);
    }

    /// How many CancelRequests have come.
    #[must_use]
    pub fn cancels(&self) -> usize {
        self.knobs.cancels.load(Ordering::Relaxed)
    }
}

fn micros(time: Duration) -> usize {
    usize::try_from(time.as_micros()).unwrap_or(usize::MAX)
}

fn join(client: TcpStream, server: TcpStream, knobs: &Arc<Knobs>) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (up, down) = ((client.try_clone()?, server.try_clone()?), (server, client));
    let (to_node, to_client) = (Arc::clone(knobs), Arc::clone(knobs));
    std::thread::spawn(move || pump(up.0, up.1, &to_node, |packet| to_node.hold_back(packet), || usize::MAX));
    std::thread::spawn(move || pump(down.0, down.1, &to_client, |_| (), || to_client.chunk()));
    Ok(())
}

impl Knobs {
    fn chunk(&self) -> usize {
        match self.chunk.load(Ordering::Relaxed) {
            0 => usize::MAX,
            bytes => bytes,
        }
    }

    fn wait_while_cut(&self) {
        while self.cut.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn hold_back(&self, packet: &[u8]) {
        let mut wait = self.delay_us.load(Ordering::Relaxed);
        if packet.get(4..8) == Some(&CANCEL[..]) {
            self.cancels.fetch_add(1, Ordering::Relaxed);
            wait = wait.max(self.cancel_delay_us.load(Ordering::Relaxed));
        }
        if wait > 0 {
            std::thread::sleep(Duration::from_micros(wait as u64));
        }
    }
}

fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    knobs: &Knobs,
    before: impl Fn(&[u8]),
    chunk: impl Fn() -> usize,
) {
    let mut buffer = vec![0u8; 65536];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        knobs.wait_while_cut();
        before(&buffer[..n]);
        for part in buffer[..n].chunks(chunk()) {
            if to.write_all(part).is_err() {
                return;
            }
        }
    }
    knobs.wait_while_cut();
    let _gone = to.shutdown(std::net::Shutdown::Write);
}
