//! Those who check passwords for pgweir: a directory (Debian's slapd), and services of PAM.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::procs::{self, Killed};
use crate::{Cluster, RawClient, eventually};

/// Debian's slapd with a person `bench` and two who are alike.
#[derive(Debug)]
pub struct Directory {
    port: u16,
    _slapd: Killed,
}

const SLAPD_CONF: &str = "\
include /etc/ldap/schema/core.schema\n\
include /etc/ldap/schema/cosine.schema\n\
include /etc/ldap/schema/inetorgperson.schema\n\
modulepath /usr/lib/ldap\n\
moduleload back_mdb\n\
database mdb\n\
suffix \"dc=example\"\n\
rootdn \"cn=admin,dc=example\"\n\
rootpw admin\n\
access to attrs=userPassword by anonymous auth by * none\n\
access to * by dn.exact=\"cn=admin,dc=example\" read by anonymous none by * read\n";

const PEOPLE: &str = "\
dn: dc=example\nobjectClass: dcObject\nobjectClass: organization\no: example\ndc: example\n\n\
dn: uid=bench,dc=example\nobjectClass: inetOrgPerson\nuid: bench\ncn: bench\nsn: b\nmail: bench@example\n\
userPassword: PASSWORD\n\n\
dn: uid=twin1,dc=example\nobjectClass: inetOrgPerson\nuid: twin1\ncn: twin\nsn: other\nuserPassword: x\n\n\
dn: uid=twin2,dc=example\nobjectClass: inetOrgPerson\nuid: twin2\ncn: twin\nsn: other\nuserPassword: x\n";

impl Directory {
    /// Starts it below `root`; `bench` has that password.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn start(root: &Path, password: &str) -> Result<Self> {
        let dir = root.join("ldap");
        fs::create_dir(&dir)?;
        fs::create_dir(dir.join("db"))?;
        let conf = format!("{SLAPD_CONF}directory {}\n", dir.join("db").display());
        // The database's own lines end with its directory.
        fs::write(dir.join("slapd.conf"), conf.replace("pidfile", "#pidfile"))?;
        fs::write(dir.join("people.ldif"), PEOPLE.replace("PASSWORD", password))?;
        let slapd = PathBuf::from("/usr/sbin/slapd");
        let out = Command::new("/usr/sbin/slapadd")
            .args(["-f", "slapd.conf", "-l", "people.ldif"])
            .current_dir(&dir)
            .output()
            .context("slapadd: install slapd")?;
        ensure!(out.status.success(), "slapadd: {}", String::from_utf8_lossy(&out.stderr));
        let port = procs::free_port()?;
        let log = fs::File::create(dir.join("log"))?;
        let child = Command::new(slapd)
            .args(["-f", "slapd.conf", "-d", "0", "-h", &format!("ldap://127.0.0.1:{port}/")])
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let started = Self { port, _slapd: Killed::new(child) };
        let there = eventually(Duration::from_secs(10), || RawClient::tcp(port).is_ok());
        ensure!(there, "slapd does not come up: {}", fs::read_to_string(dir.join("log"))?);
        Ok(started)
    }

    /// Of 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Files of /etc/pam.d that go with the test.
#[derive(Debug)]
pub struct Services {
    prefix: String,
    files: Vec<PathBuf>,
}

impl Services {
    /// None, with a line that says so, when this user may not make services.
    #[must_use]
    pub fn new() -> Option<Self> {
        let prefix = format!("pgweir-test-{}", std::process::id());
        let probe = PathBuf::from("/etc/pam.d").join(&prefix);
        match fs::write(&probe, "") {
            Ok(()) => Some(Self { prefix, files: vec![probe] }),
            Err(error) => {
                println!("left out: services cannot be made in /etc/pam.d ({error}); run this test as root");
                None
            }
        }
    }

    /// Makes one; its name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn make(&mut self, name: &str, lines: &str) -> Result<String> {
        let service = format!("{}-{name}", self.prefix);
        let path = PathBuf::from("/etc/pam.d").join(&service);
        self.files.push(path.clone());
        fs::write(path, lines)?;
        Ok(service)
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

/// The lines of a service that asks a script of that text; the password is its standard input.
///
/// # Errors
/// The script cannot be written.
pub fn asks(cluster: &Cluster, name: &str, script: &str) -> Result<String> {
    let path = cluster.root().join(format!("{name}.sh"));
    fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let exec = format!("auth required pam_exec.so expose_authtok quiet {}\n", path.display());
    Ok(format!("{exec}account required pam_permit.so\n"))
}
