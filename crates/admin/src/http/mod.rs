//! HTTP on `metrics_listen`: `/metrics` for Prometheus, `/health` and `/ready` for orchestrators, `/status` for
//! `pgweir status` and `pgweir top`, and a page for people at `/`.
//!
//! Every connection is bounded in number, age, header size and the time a header may take, and the oldest makes room for a new
//! one. Nothing here waits for a node: the answers come from snapshots, also when all nodes are down.

mod page;
mod samples;
mod status;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use telemetry::{Metrics, Sparse, Tasks, metrics};
use tokio::net::{TcpListener, TcpStream};

use crate::seats::{Seat, Seats};
use crate::view::AdminView;

/// Connections at a time; one more ends the oldest.
const MAX_CONNECTIONS: usize = 128;
/// A request's header must be there in this time, counted from the end of the request before it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// The first header must be there in this time.
const FIRST_HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's header.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Header lines of a request.
const MAX_HEADERS: usize = 64;
/// A connection is told to end at this age, so that one that stalls does not stay for ever ...
const MAX_AGE: Duration = Duration::from_secs(300);
/// ... and is closed this much later.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Pause after an accept that failed (no file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

type Body = Full<Bytes>;

/// One path: a row of [`RESOURCES`].
pub struct Resource {
    /// The path.
    pub path: &'static str,
    /// What it answers, in one sentence.
    pub help: &'static str,
    answer: fn(&Server) -> Response<Body>,
}

/// Every path.
pub const RESOURCES: &[Resource] = &[
    Resource { path: "/metrics", help: "The metrics in the Prometheus text format.", answer: metrics_page },
    Resource {
        path: "/health",
        help: "200 while the process lives, whatever the nodes do: JSON with status, pid, version and nodes.",
        answer: health,
    },
    Resource {
        path: "/ready",
        help: "200 when a primary or a standby can be used and pgweir is not stopping, else 503.",
        answer: ready,
    },
    Resource { path: "/status", help: "What `pgweir status --json` prints.", answer: status_json },
    Resource {
        path: "/",
        help: "The same for people: nodes, pools, databases and the last events, in HTML that renews itself.",
        answer: status_page,
    },
];

/// What the answers are made from.
struct Server {
    view: Arc<dyn AdminView>,
    metrics: Arc<Metrics>,
}

/// Serves HTTP on `listener` until the future is dropped.
pub async fn serve(listener: TcpListener, tasks: Tasks, view: Arc<dyn AdminView>, metrics: Arc<Metrics>) {
    let server = Arc::new(Server { view, metrics });
    let mut lines = Sparse::default();
    let seats = Seats::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Nobody keeps a seat here, so that there is always one.
                let Some(seat) = seats.take() else { continue };
                tasks.spawn("http connection", sit(stream, Arc::clone(&server), seat));
            }
            Err(error) => {
                if let Some(left_out) = lines.admit(Instant::now()) {
                    tracing::warn!(%error, left_out, "cannot accept an HTTP connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn sit(stream: TcpStream, server: Arc<Server>, seat: Seat) {
    if seat.hold(connection(stream, server)).await.is_none() {
        tracing::debug!("an HTTP connection made room for a new one");
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>) {
    // A client that connects and says nothing is not worth a keep-alive's patience.
    if !matches!(tokio::time::timeout(FIRST_HEADER_TIMEOUT, stream.readable()).await, Ok(Ok(()))) {
        return;
    }
    let service = service_fn(move |request| {
        let response = answer(&server, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => Some(ended),
        () = tokio::time::sleep(MAX_AGE) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_WORDS, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "HTTP connection failed");
    }
}

/// GET and HEAD; the library leaves the body of an answer to HEAD away.
fn answer(server: &Server, request: &Request<Incoming>) -> Response<Body> {
    let Some(resource) = RESOURCES.iter().find(|resource| resource.path == request.uri().path()) else {
        return response(StatusCode::NOT_FOUND, TEXT, "not found\n".into());
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET or HEAD only\n".into());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    (resource.answer)(server)
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(mut text) => {
            text.push('\n');
            response(status, JSON, text)
        }
        Err(error) => failed(&error),
    }
}

/// The details are for the log; whoever asks learns that there are some.
fn failed(error: &dyn std::error::Error) -> Response<Body> {
    tracing::error!(%error, "HTTP answer failed");
    response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "internal error, see the log\n".into())
}

fn metrics_page(server: &Server) -> Response<Body> {
    match server.metrics.encode_with(&samples::samples(&*server.view)) {
        Ok(text) => response(StatusCode::OK, metrics::CONTENT_TYPE, text),
        Err(error) => failed(&error),
    }
}

fn health(server: &Server) -> Response<Body> {
    json(StatusCode::OK, &status::Health::of(&*server.view))
}

fn ready(server: &Server) -> Response<Body> {
    let readiness = status::Readiness::of(&*server.view);
    let code = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, &readiness)
}

fn status_page(server: &Server) -> Response<Body> {
    let mut response = response(StatusCode::OK, HTML, page::page(&*server.view));
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::POLICY));
    response
}

fn status_json(server: &Server) -> Response<Body> {
    json(StatusCode::OK, &status::Status::of(&*server.view))
}

#[cfg(test)]
mod tests;
