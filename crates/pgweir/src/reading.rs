//! Reading the configuration's files for a reload, beside everything else: a pipe that nobody writes to, or a file system
//! that does not answer, blocks whoever opens a file on it.
//!
//! One reading at a time. Who asks during one gets one of their own behind it: the files may have changed meanwhile.

use std::collections::VecDeque;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use config::Config;
use proxy::tls::TlsSetup;
use telemetry::off_thread;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::reload::ReloadError;

/// How long the files may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who asked for it is told here; nobody, when it was a signal.
pub(crate) type Reply = Option<oneshot::Sender<Result<String, ReloadError>>>;

/// What the files say.
pub(crate) struct Files {
    pub(crate) config: Config,
    pub(crate) tls: TlsSetup,
}

/// What ends when the files are read; with nothing, when that panicked.
type Task = Pin<Box<dyn Future<Output = Option<Result<Files, ReloadError>>>>>;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Reading {
    task: Option<Task>,
    /// Who is told of it, until when; nobody, once it has been given up.
    current: Option<(Reply, Instant)>,
    /// Who wants another one behind it.
    waiting: VecDeque<Reply>,
}

impl Reading {
    /// Somebody asks for one. Signals that wait are one.
    pub(crate) fn ask(&mut self, reply: Reply) {
        if reply.is_some() || self.waiting.iter().all(Option::is_some) {
            self.waiting.push_back(reply);
        }
    }

    /// Begins the next one, if nobody else reads.
    ///
    /// Gives back who cannot be served: what was given up still blocks.
    pub(crate) fn begin(&mut self, file: &Path) -> Begun {
        if self.current.is_some() {
            return Begun::Nothing;
        }
        let Some(reply) = self.waiting.pop_front() else { return Begun::Nothing };
        let given_up = self.task.as_mut();
        if given_up
            .is_some_and(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending())
        {
            return Begun::Blocked(reply);
        }
        let file = file.to_owned();
        self.task = Some(Box::pin(off_thread("reading the configuration", move || {
            let config = config::load(&file)?;
            let tls = TlsSetup::build(&config)?;
            Ok(Files { config, tls })
        })));
        self.current = Some((reply, Instant::now() + PATIENCE));
        Begun::Reading
    }

    /// Waits for the end of the one that has begun; for ever, when none has. May be dropped and called again.
    pub(crate) async fn done(&mut self) -> (Reply, Result<Files, ReloadError>) {
        let (Some(task), Some((_, until))) = (&mut self.task, &self.current) else {
            return std::future::pending().await;
        };
        let read = match tokio::time::timeout_at(*until, task).await {
            Ok(ended) => {
                self.task = None;
                ended.unwrap_or(Err(ReloadError::Reader))
            }
            Err(_) => Err(ReloadError::Slow(PATIENCE)),
        };
        (self.current.take().and_then(|(reply, _)| reply), read)
    }
}

/// What came of [`Reading::begin`].
pub(crate) enum Begun {
    /// Nobody asks, or somebody reads.
    Nothing,
    /// The files are being read.
    Reading,
    /// An earlier reading was given up and still blocks: this one is refused.
    Blocked(Reply),
}
