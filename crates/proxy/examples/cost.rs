//! What a pool costs: taking a backend and giving it back, when one is free and when somebody waits for it.
//! `cargo run --release -p pgweir-proxy --example cost`.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a program for people")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Epoch, NodeId};
use proxy::backend::Backend;
use proxy::cancel::CancelKey;
use proxy::connect::NodeAddress;
use proxy::engine::Books;
use proxy::pool::{Acquired, Grant, Pool, PoolKey, Waiting};
use proxy::registry::{NewServer, Peer, Registry};
use proxy::stream::Stream;
use tokio::net::{TcpListener, TcpStream};

const ROUNDS: usize = 11;
const CALLS: u32 = 100_000;
const SIZE: u32 = 20;

/// The median of several rounds, per call.
fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            (0..CALLS).for_each(|_| work());
            began.elapsed() / CALLS
        })
        .collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn place(acquired: Acquired) -> proxy::pool::Slot {
    match acquired {
        Acquired::Granted(Grant::Place(slot)) => slot,
        other => panic!("no place: {other:?}"),
    }
}

fn backend(acquired: Acquired) -> Box<Backend> {
    match acquired {
        Acquired::Granted(Grant::Backend(backend)) => backend,
        other => panic!("no backend: {other:?}"),
    }
}

fn waiting(acquired: Acquired) -> Waiting {
    match acquired {
        Acquired::Queued(waiting) => waiting,
        other => panic!("not queued: {other:?}"),
    }
}

/// A connection that nobody uses, in the first free place of the pool.
async fn open(
    pool: &Arc<Pool>,
    registry: &Arc<Registry>,
    listener: &TcpListener,
) -> (Box<Backend>, TcpStream) {
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (other_end, _) = listener.accept().await.unwrap();
    let PoolKey { node, database, user } = pool.key.clone();
    let entry = registry.enter_server(NewServer {
        node,
        database,
        user,
        pid: 1,
        ends: (Peer::Unix, Peer::Unix),
        metrics: None,
        replication: protocol::startup::Replication::default(),
        tls: None,
    });
    let address = Arc::clone(&pool.address);
    let key = CancelKey { node, address, pid: 1, secret: Arc::new([1; 4]), tls: None };
    let (now, mut slot) = (Instant::now(), place(pool.acquire(0)));
    slot.connected();
    let backend = Box::new(Backend {
        stream: Stream::Tcp(stream),
        books: Books::default(),
        key: Arc::new(key),
        node,
        epoch: Epoch::default(),
        worker: 0,
        opened: now,
        idle_since: now,
        entry,
        slot,
    });
    (backend, other_end)
}

/// Outside of the runtime, which would want the loop to yield.
fn measure(runtime: &tokio::runtime::Runtime) {
    let key = PoolKey { node: NodeId(0), database: "bench".into(), user: "bench".into() };
    let address = Arc::new(NodeAddress { hostname: "127.0.0.1".into(), port: 1 });
    let (pool, registry) = (Pool::new(key, address, Arc::default(), SIZE), Arc::<Registry>::default());
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let (mut opened, mut other_ends) = (Vec::new(), Vec::new());
    for _ in 0..SIZE {
        let (backend, other_end) = runtime.block_on(open(&pool, &registry, &listener));
        opened.push(backend);
        other_ends.push(other_end);
    }
    opened.drain(..).for_each(|backend| pool.release(backend));
    let free = median(|| pool.release(black_box(backend(pool.acquire(0)))));
    println!("taking a free backend and giving it back:   {:>7.1} ns", free.as_secs_f64() * 1e9);
    let all: Vec<_> = (0..SIZE).map(|_| backend(pool.acquire(0))).collect();
    let mut last = all.into_iter();
    let mut held = last.next();
    for behind in [0_usize, 1_000] {
        let queue: Vec<_> = (0..behind).map(|_| waiting(pool.acquire(0))).collect();
        drop(queue);
        let handed = median(|| {
            let mut first = waiting(pool.acquire(0));
            held.take().into_iter().for_each(|backend| pool.release(backend));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let granted = std::pin::pin!(first.granted()).poll(&mut context);
            match granted {
                std::task::Poll::Ready(Some(Grant::Backend(backend))) => held = Some(backend),
                other => panic!("nothing was handed over: {other:?}"),
            }
        });
        println!("waiting, being handed one ({behind:>4} have left): {:>7.1} ns", handed.as_secs_f64() * 1e9);
    }
    drop((last, held, other_ends));
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    measure(&runtime);
}
