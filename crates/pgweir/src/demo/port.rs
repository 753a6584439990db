//! Is a port free, and if not, whose is it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, bail};

/// The state number of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Fails when something listens on the port already.
///
/// # Errors
/// Names the port, who has it when that can be seen, and the option that chooses another.
pub(super) fn ensure_free(port: u16, option: &str, make: &str) -> anyhow::Result<()> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let owner = owner_of(port).map(|owner| format!(" by {owner}")).unwrap_or_default();
            let other = port.checked_add(1000).unwrap_or(10_000);
            bail!(
                "port {port} is taken{owner}: stop it, or choose another port ({option} {other}, or {make}{other})"
            )
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on port {port} ({option})")),
    }
}

/// `process 123 (postgres)`, as far as /proc lets us see it; only Linux has it, and only root sees everybody's.
fn owner_of(port: u16) -> Option<String> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .find_map(|table| listening_inode(&table, port).map(str::to_owned))?;
    let socket = format!("socket:[{inode}]");
    let pid = std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let mut files = std::fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let holds =
            files.any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*socket));
        holds.then_some(pid)
    })?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("process {pid} ({})", name.trim()))
}

/// The inode of the socket that listens on the port. A row of the table: number, local address `HEX:PORT`, remote
/// address, state, queues, timers, retransmits, uid, timeout, inode.
fn listening_inode(table: &str, port: u16) -> Option<&str> {
    table.lines().skip(1).find_map(|row| {
        let mut fields = row.split_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let number = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        (number == port && state == LISTEN).then(|| fields.nth(5)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named_with_its_owner_and_the_option() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = ensure_free(port, "--port", "make run PORT=").unwrap_err().to_string();
        assert!(
            error.contains(&format!("port {port} is taken")) && error.contains("make run PORT="),
            "{error}"
        );
        if cfg!(target_os = "linux") {
            assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        }
        drop(listener);
        ensure_free(port, "--port", "make run PORT=").unwrap();
    }

    #[test]
    fn only_listening_sockets_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:270F 0100007F:8A3C 01 00000000:00000000 00:00000000 00000000     0        0 111 1\n\
            1: 00000000:270F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 222 1\n";
        assert_eq!(listening_inode(table, 9999), Some("222"));
        assert_eq!(listening_inode(table, 9998), None);
    }
}
