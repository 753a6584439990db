//! A verdict as one line of text.

use router::{Access, Effect, Isolation, TxControl, TxMode, Verdict};

/// `access reason [kind] [tx:...] [pin:...] [effect:...] [n:statements]`; what is usual is left out.
pub(crate) fn line(verdict: &Verdict) -> String {
    let access = match verdict.access {
        Access::Read => "read",
        Access::Write => "write",
        Access::Neutral => "neutral",
    };
    let mut line = format!("{access} {} {}", verdict.reason.as_str(), verdict.kind.as_str());
    if let Some(tx) = transaction(&verdict.tx) {
        line.push_str(&format!(" tx:{tx}"));
    }
    if let Some(pin) = verdict.pin {
        line.push_str(&format!(" pin:{}", pin.as_str()));
    }
    match verdict.effect {
        Effect::None => {}
        Effect::DeallocateAll => line.push_str(" effect:deallocate_all"),
        Effect::DiscardAll => line.push_str(" effect:discard_all"),
        Effect::Console => line.push_str(" effect:console"),
        Effect::Statements => line.push_str(" effect:statements"),
    }
    if verdict.statements != 1 {
        line.push_str(&format!(" n:{}", verdict.statements));
    }
    line
}

fn transaction(tx: &TxControl) -> Option<String> {
    let flag = |chain: &bool| if *chain { "+chain" } else { "" };
    Some(match tx {
        TxControl::None => return None,
        TxControl::Begin(mode) => format!("begin{}", modes(mode)),
        TxControl::Commit { chain } => format!("commit{}", flag(chain)),
        TxControl::Rollback { chain } => format!("rollback{}", flag(chain)),
        TxControl::Savepoint => "savepoint".into(),
        TxControl::SetTransaction(mode) => format!("set{}", modes(mode)),
        TxControl::TwoPhase => "2pc".into(),
        TxControl::Mixed => "mixed".into(),
    })
}

fn modes(mode: &TxMode) -> String {
    let mut text = String::new();
    match mode.read_only {
        Some(true) => text.push_str(",ro"),
        Some(false) => text.push_str(",rw"),
        None => {}
    }
    match mode.isolation {
        Some(Isolation::ReadUncommitted) => text.push_str(",ru"),
        Some(Isolation::ReadCommitted) => text.push_str(",rc"),
        Some(Isolation::RepeatableRead) => text.push_str(",rr"),
        Some(Isolation::Serializable) => text.push_str(",ser"),
        None => {}
    }
    match mode.deferrable {
        Some(true) => text.push_str(",def"),
        Some(false) => text.push_str(",notdef"),
        None => {}
    }
    text
}
