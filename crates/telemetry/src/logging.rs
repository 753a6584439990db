//! Logs: one line per event, text or JSON, with the level, the format and the destination changeable while
//! the process runs.
//!
//! Names and texts come from clients and servers: an event is one line whatever they hold, and none reaches a terminal
//! as an order to it.
//!
//! Events carry their own fields (`session`, `node`, `reason` ...); JSON lines leave spans out, so that the
//! format can change at any moment.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{self, Format, FormatEvent, FormatFields, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `time LEVEL target: message field=value`.
    Text,
    /// One JSON object per line, the fields at its top level.
    Json,
}

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard error.
    Stderr,
    /// Appended to this file, which is made when it is not there.
    File(PathBuf),
}

/// What `log_level`, `log_format` and `log_destination` say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `error`, `warn`, `info`, `debug`, `trace`, `off`, or directives such as `info,proxy=debug`.
    pub level: String,
    /// How a line looks.
    pub format: LogFormat,
    /// Where lines go.
    pub destination: Destination,
}

/// Why logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The level is no level and no list of directives.
    #[error("\"{0}\" is not a log level (error, warn, info, debug, trace, off)")]
    Level(String),
    /// The file cannot be opened.
    #[error("cannot open the log file {}: {source}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something in this process has set up logging before.
    #[error("logging is set up already")]
    Already,
    /// The subscriber is gone.
    #[error("logging cannot be changed: {0}")]
    Reload(#[from] reload::Error),
}

/// Changes the logging of the process; kept by the supervisor.
#[derive(Debug, Clone)]
pub struct Logging {
    filter: reload::Handle<EnvFilter, Registry>,
    output: Output,
}

/// Sets up logging for the whole process.
///
/// # Errors
/// The level is unknown, the file cannot be opened, or logging is set up already.
pub fn init(settings: &Settings) -> Result<Logging, LoggingError> {
    let (subscriber, logging) = build(settings)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LoggingError::Already)?;
    Ok(logging)
}

fn build(settings: &Settings) -> Result<(impl Subscriber + Send + Sync + use<>, Logging), LoggingError> {
    let (filter, handle) = reload::Layer::new(parse_level(&settings.level)?);
    let output = Output::open(settings)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .event_format(Lines::new(output.clone()))
        .with_writer(output.clone());
    Ok((tracing_subscriber::registry().with(filter).with(lines), Logging { filter: handle, output }))
}

impl Logging {
    /// Takes over new settings. Nothing changes when one of them is refused.
    ///
    /// # Errors
    /// The level is unknown or the file cannot be opened.
    pub fn apply(&self, settings: &Settings) -> Result<(), LoggingError> {
        let filter = parse_level(&settings.level)?;
        let target = Target::open(settings)?;
        self.filter.reload(filter)?;
        self.output.target.store(Arc::new(target));
        Ok(())
    }

    /// Changes the level alone.
    ///
    /// # Errors
    /// The level is unknown.
    pub fn set_level(&self, level: &str) -> Result<(), LoggingError> {
        Ok(self.filter.reload(parse_level(level)?)?)
    }

    /// Opens the log file anew, after a rotation moved it away (SIGUSR1).
    ///
    /// # Errors
    /// The file cannot be opened; the old one stays in use.
    pub fn reopen(&self) -> Result<(), LoggingError> {
        let target = self.output.target.load();
        let reopened = Target::at(&target.destination, target.format)?;
        self.output.target.store(Arc::new(reopened));
        Ok(())
    }
}

/// A bare word must be a level: the filter's own parser would take `inof` for a module's name.
fn parse_level(level: &str) -> Result<EnvFilter, LoggingError> {
    let refused = || LoggingError::Level(level.to_owned());
    let words = level.split(',').map(str::trim);
    if !words
        .clone()
        .all(|word| word.contains('=') || (!word.is_empty() && LevelFilter::from_str(word).is_ok()))
    {
        return Err(refused());
    }
    EnvFilter::try_new(level).map_err(|_| refused())
}

/// The format and the open destination.
#[derive(Debug)]
struct Target {
    format: LogFormat,
    destination: Destination,
    file: Option<Mutex<File>>,
}

impl Target {
    fn open(settings: &Settings) -> Result<Self, LoggingError> {
        Self::at(&settings.destination, settings.format)
    }

    fn at(destination: &Destination, format: LogFormat) -> Result<Self, LoggingError> {
        let file = match destination {
            Destination::Stderr => None,
            Destination::File(path) => {
                let opened = OpenOptions::new().append(true).create(true).open(path);
                Some(Mutex::new(opened.map_err(|source| LoggingError::Open { path: path.clone(), source })?))
            }
        };
        Ok(Self { format, destination: destination.clone(), file })
    }

    /// A line that the file does not take (a full disk) goes to the standard error output, and says why.
    fn beside(&self, text: &[u8], error: &io::Error) -> io::Result<()> {
        let mut both = format!("{}: {error}: ", self.destination).into_bytes();
        both.extend_from_slice(text);
        io::stderr().write_all(&both)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Where lines go now.
#[derive(Debug, Clone)]
struct Output {
    target: Arc<ArcSwap<Target>>,
}

impl Output {
    fn open(settings: &Settings) -> Result<Self, LoggingError> {
        Ok(Self { target: Arc::new(ArcSwap::from_pointee(Target::open(settings)?)) })
    }
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter(self.target.load_full())
    }
}

/// Writes one line; the layer hands over whole lines.
struct LineWriter(Arc<Target>);

/// The line with what is no text escaped; `None` when there is nothing to escape.
fn one_line(line: &[u8]) -> Option<String> {
    let body = line.strip_suffix(b"\n").unwrap_or(line);
    // C1 control characters begin with 0xc2 in UTF-8; other letters do too.
    if !body.iter().any(|byte| byte.is_ascii_control() || *byte == 0xc2) {
        return None;
    }
    let mut escaped = String::with_capacity(line.len() + 16);
    for letter in String::from_utf8_lossy(body).chars() {
        match letter.is_control() {
            true => escaped.extend(letter.escape_default()),
            false => escaped.push(letter),
        }
    }
    escaped.push('\n');
    Some(escaped)
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let escaped = one_line(line);
        let text = escaped.as_deref().map_or(line, str::as_bytes);
        let Some(file) = &self.0.file else {
            io::stderr().write_all(text)?;
            return Ok(line.len());
        };
        let written = file.lock().write_all(text);
        if let Err(error) = written {
            self.0.beside(text, &error)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match &self.0.file {
            Some(file) => file.lock().flush(),
            None => io::stderr().flush(),
        }
    }
}

/// Formats an event in the format of the moment.
struct Lines {
    output: Output,
    text: Format<format::Full>,
    json: Format<Json>,
}

impl Lines {
    fn new(output: Output) -> Self {
        let json = format::json().flatten_event(true).with_current_span(false).with_span_list(false);
        Self { output, text: format::format(), json }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.output.target.load().format {
            LogFormat::Text => self.text.format_event(context, writer, event),
            LogFormat::Json => self.json.format_event(context, writer, event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(level: &str, format: LogFormat, path: PathBuf) -> Settings {
        Settings { level: level.into(), format, destination: Destination::File(path) }
    }

    #[test]
    fn level_format_and_file_change_while_it_runs() {
        let dir = std::env::temp_dir().join(format!("pgweir-logging-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (first, second) = (dir.join("first"), dir.join("second"));
        let (subscriber, logging) = build(&settings("info", LogFormat::Text, first.clone())).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(session = 7, "login");
            tracing::debug!("unseen");
            assert!(logging.apply(&settings("inof", LogFormat::Json, second.clone())).is_err());
            logging.apply(&settings("debug", LogFormat::Json, second.clone())).unwrap();
            tracing::debug!(session = 8, reason = "it said \"no\"", "logout");
            std::fs::rename(&second, dir.join("rotated")).unwrap();
            logging.reopen().unwrap();
            tracing::error!("after the rotation");
            logging.set_level("off").unwrap();
            tracing::error!("unseen");
        });
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let (first, rotated, second) = (read("first"), read("rotated"), read("second"));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(
            first.lines().count() == 1 && first.contains("INFO") && first.contains("login session=7"),
            "{first}"
        );
        assert!(rotated.contains(r#""message":"logout","session":8,"reason":"it said \"no\"""#), "{rotated}");
        assert!(second.lines().count() == 1 && second.contains("after the rotation"), "{second}");
    }

    #[test]
    fn an_event_is_one_line_of_text() {
        assert_eq!(one_line("plain, and caf\u{e9}\n".as_bytes()), None);
        assert_eq!(one_line("£5\n".as_bytes()).as_deref(), Some("£5\n"));
        for (text, written) in [
            ("user x\n2026 INFO all is well\n", "user x\\n2026 INFO all is well\n"),
            ("\u{1b}[2J\r\t\u{7f}\u{9b}1m\n", "\\u{1b}[2J\\r\\t\\u{7f}\\u{9b}1m\n"),
            ("no end\nof it", "no end\\nof it\n"),
        ] {
            assert_eq!(one_line(text.as_bytes()).as_deref(), Some(written));
        }
    }

    #[test]
    fn levels_are_words_or_directives() {
        for level in ["error", "INFO", "off", "info,proxy=debug"] {
            assert!(parse_level(level).is_ok(), "{level}");
        }
        for level in ["", "inof", "info,proxi", "proxy=loud"] {
            assert!(parse_level(level).is_err(), "{level}");
        }
    }
}
