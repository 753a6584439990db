use std::net::SocketAddr;
use std::time::UNIX_EPOCH;

use cluster::NodeState;
use telemetry::metrics::{METRICS, NodeLabel, Vocabulary};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::testing::FakeView;
use crate::view::ProcessState;

const WORDS: Vocabulary<'static> = Vocabulary {
    version: "9.8.7",
    route_reasons: &["read"],
    pin_reasons: &["temp_table"],
    login_failures: &["password"],
    connect_failures: &["unreachable"],
    roles: &["unknown", "primary", "standby"],
};

/// A server on a free port, and what it serves.
async fn started() -> (SocketAddr, Arc<FakeView>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let view = Arc::new(FakeView::new());
    let metrics = Arc::new(Metrics::new(&WORDS, UNIX_EPOCH).unwrap());
    metrics.set_nodes(&[NodeLabel { id: 0, hostname: "db0".into(), port: 5432 }]).unwrap();
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    tasks.spawn("http", serve(listener, tasks.clone(), Arc::clone(&view) as Arc<dyn AdminView>, metrics));
    (address, view)
}

/// One answer: status, headers in lower case, body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

struct Client(TcpStream);

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    async fn send(&mut self, method: &str, path: &str) {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
    }

    /// Reads one answer and not a byte more; an answer to HEAD has no body.
    async fn receive(&mut self, method: &str) -> Answer {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
        let mut body = vec![0; if method == "HEAD" { 0 } else { length }];
        self.0.read_exact(&mut body).await.unwrap();
        let status = head[9..12].parse().unwrap();
        Answer { status, head, body: String::from_utf8(body).unwrap() }
    }

    async fn ask(&mut self, method: &str, path: &str) -> Answer {
        self.send(method, path).await;
        self.receive(method).await
    }
}

async fn get(address: SocketAddr, path: &str) -> Answer {
    Client::connect(address).await.ask("GET", path).await
}

fn parsed(answer: &Answer) -> serde_json::Value {
    assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test]
async fn metrics_are_whole_and_say_what_they_are() {
    let (address, _) = started().await;
    let answer = get(address, "/metrics?x=1").await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{}",
        answer.head
    );
    for row in METRICS {
        assert!(
            answer.body.contains(&format!("# TYPE {} {}\n", row.name, row.kind.as_str())),
            "{}",
            row.name
        );
    }
    assert!(answer.body.ends_with('\n') && !answer.body.contains("=\"\""));
}

#[tokio::test]
async fn one_connection_takes_many_requests_and_head_has_no_body() {
    let (address, _) = started().await;
    let mut client = Client::connect(address).await;
    for path in ["/metrics", "/health", "/ready", "/status", "/"] {
        let full = client.ask("GET", path).await;
        let head = client.ask("HEAD", path).await;
        assert_eq!((full.status, head.status), (200, 200), "{path}");
        assert!(head.head.contains("content-length: ") && head.body.is_empty());
    }
    client.send("GET", "/health").await;
    client.send("GET", "/ready").await;
    assert!(client.receive("GET").await.body.contains("\"pid\":42"));
    assert!(client.receive("GET").await.body.contains("\"ready\""));
}

#[tokio::test]
async fn what_is_not_there_is_404_and_what_is_not_asked_is_405() {
    let (address, _) = started().await;
    assert_eq!(get(address, "/nothing").await.status, 404);
    assert_eq!(get(address, "/metrics/").await.status, 404);
    let refused = Client::connect(address).await.ask("POST", "/metrics").await;
    assert_eq!(refused.status, 405);
    assert!(refused.head.contains("allow: get, head\r\n"), "{}", refused.head);
}

#[tokio::test]
async fn health_is_about_the_process_and_ready_about_the_nodes() {
    let (address, view) = started().await;
    let health = parsed(&get(address, "/health").await);
    assert_eq!(
        (&health["status"], &health["pid"], &health["version"]),
        (&"ok".into(), &42.into(), &"9.8.7".into())
    );
    assert_eq!(health["nodes"][1]["hostname"], "db1");
    assert_eq!(health["nodes"][1]["role"], "standby");

    view.nodes.lock()[0].state = NodeState::Down;
    let answer = get(address, "/ready").await;
    let ready = parsed(&answer);
    assert_eq!((answer.status, &ready["writes"], &ready["reads"]), (200, &false.into(), &true.into()));

    view.nodes.lock()[1].state = NodeState::Quarantine;
    let answer = get(address, "/ready").await;
    assert_eq!((answer.status, &parsed(&answer)["status"]), (503, &"no usable node".into()));
    assert_eq!(get(address, "/health").await.status, 200);

    view.nodes.lock()[1].state = NodeState::Up;
    *view.state.lock() = ProcessState::Stopping;
    assert_eq!(get(address, "/ready").await.status, 503);
}

#[tokio::test]
async fn status_tells_the_whole_picture() {
    let (address, _) = started().await;
    let status = parsed(&get(address, "/status").await);
    assert_eq!(status["started_at"], "2024-02-29T12:33:56Z");
    assert_eq!(status["uptime_seconds"], 60);
    assert_eq!(status["topology_epoch"], 5);
    assert_eq!(status["nodes"][1]["replication_delay_bytes"], 4096);
    assert_eq!(status["nodes"][1]["status"], "up");
    assert_eq!(status["nodes"][0]["replication_delay_bytes"], serde_json::Value::Null);
    assert_eq!(status["pools"][0]["max_wait_seconds"], 1.5);
    assert_eq!(status["clients"]["total"], 5);
    assert_eq!(status["clients"]["pinned"], 1);
    assert_eq!(status["servers"]["active"], 1);
    assert!(
        status["databases"][0]["transactions"].is_u64() && status["events"][0]["event"].is_string(),
        "{status}"
    );
}

/// The texts of the cells of a table of the page; panics on HTML that is not nested as it should be.
fn cells(page: &str, id: &str) -> Vec<Vec<String>> {
    let (mut open, mut rows, mut inside) = (Vec::new(), Vec::<Vec<String>>::new(), false);
    for part in page.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag that does not end");
        let name = tag.split(' ').next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if ["!DOCTYPE", "meta"].contains(&name) => continue,
            None => open.push(name),
        }
        match name {
            "table" => inside = tag.contains(&format!("id=\"{id}\"")),
            "/table" => inside = false,
            "tr" if inside => rows.push(Vec::new()),
            "td" if inside => rows.last_mut().unwrap().push(text.to_owned()),
            "span" | "/span" if inside => rows.last_mut().unwrap().last_mut().unwrap().push_str(text),
            _ => {}
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    rows.remove(0);
    rows
}

#[tokio::test]
async fn the_page_shows_what_there_is_and_no_name_is_html() {
    let (address, view) = started().await;
    view.nodes.lock()[1].hostname = "<script>alert('1')</script>&\"".into();
    view.nodes.lock()[1].state = NodeState::Down;
    let answer = get(address, "/").await;
    assert!(answer.head.contains("content-type: text/html; charset=utf-8\r\n"), "{}", answer.head);
    assert!(answer.head.contains("content-security-policy: default-src 'none'"), "{}", answer.head);
    assert!(answer.body.contains("http-equiv=\"refresh\"") && !answer.body.contains("<script"));
    let nodes = cells(&answer.body, "nodes");
    assert_eq!(nodes.len(), 2);
    assert_eq!((nodes[0][0].as_str(), nodes[0][2].as_str(), nodes[0][3].as_str()), ("0", "up", "primary"));
    assert_eq!(nodes[1][2], "down");
    assert!(nodes[1][1].starts_with("&lt;script&gt;alert(&#39;1&#39;)"), "{}", nodes[1][1]);
    assert!(!cells(&answer.body, "pools").is_empty() && !cells(&answer.body, "events").is_empty());
}

#[tokio::test]
async fn many_scrapes_at_once_are_served_beside_silent_clients() {
    let (address, _) = started().await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let scrapes: Vec<_> = (0..20)
        .map(|_| tasks.spawn("scrape", async move { get(address, "/metrics").await.status }))
        .collect();
    for scrape in scrapes {
        assert_eq!(scrape.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn rubbish_and_endless_headers_end_the_connection_only() {
    let (address, _) = started().await;
    for bytes in [b"\x16\x03\x01\x00\xff".to_vec(), vec![b'a'; 4 * MAX_HEADER_BYTES]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close while we still write; what counts is that it ends.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }
    assert_eq!(get(address, "/health").await.status, 200);
}
