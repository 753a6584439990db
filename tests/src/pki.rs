//! Certificates for tests, made by the `openssl` program in a directory of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// How a certificate is signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signature {
    /// ECDSA P-256 with SHA-256.
    #[default]
    Sha256,
    /// RSA with SHA-384.
    RsaSha384,
    /// RSA with SHA-512.
    RsaSha512,
    /// Ed25519, which has no hash of its own.
    Ed25519,
}

impl Signature {
    fn key(self) -> &'static [&'static str] {
        match self {
            Self::Sha256 => &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
            Self::RsaSha384 | Self::RsaSha512 => &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
            Self::Ed25519 => &["-algorithm", "ED25519"],
        }
    }

    fn digest(self) -> &'static [&'static str] {
        match self {
            Self::Sha256 => &["-sha256"],
            Self::RsaSha384 => &["-sha384"],
            Self::RsaSha512 => &["-sha512"],
            Self::Ed25519 => &[],
        }
    }
}

/// An authority with its directory.
#[derive(Debug)]
pub struct Pki {
    dir: PathBuf,
    signature: Signature,
}

impl Pki {
    /// An authority in a new directory `name` of `root`.
    ///
    /// # Errors
    /// When `openssl` is missing or refuses.
    pub fn new(root: &Path, name: &str, signature: Signature) -> Result<Self> {
        let dir = root.join(name);
        fs::create_dir(&dir)?;
        let pki = Self { dir, signature };
        pki.genkey("ca")?;
        let subject = format!("/CN={name} authority");
        let digest = signature.digest();
        pki.openssl(
            &[&["req", "-x509", "-new", "-key", "ca.key", "-out", "ca.crt", "-days", "30"], digest].concat(),
            &["-subj", &subject],
        )?;
        fs::write(pki.dir.join("index.txt"), "")?;
        fs::write(
            pki.dir.join("ca.conf"),
            "[ca]\ndefault_ca = own\n[own]\ndatabase = index.txt\ndefault_md = sha256\ndefault_crl_days = 30\n",
        )?;
        Ok(pki)
    }

    /// An authority in a new directory `name` of `root`, certified by this one.
    ///
    /// # Errors
    /// When `openssl` refuses.
    pub fn below(&self, root: &Path, name: &str) -> Result<Self> {
        let below = Self::new(root, name, self.signature)?;
        below.openssl(
            &["req", "-new", "-key", "ca.key", "-out", "ca.csr"],
            &["-subj", &format!("/CN={name} authority")],
        )?;
        fs::write(below.dir.join("ca.ext"), "basicConstraints=critical,CA:TRUE\n")?;
        let [csr, crt, ext] = ["ca.csr", "ca.crt", "ca.ext"].map(|file| below.path(file));
        let sign = ["x509", "-req", "-in", &csr, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
        let rest = ["-out", &crt, "-days", "30", "-extfile", &ext];
        self.openssl(&[&sign[..], &rest, self.signature.digest()].concat(), &[])?;
        Ok(below)
    }

    /// Makes `name.crt` and `name.key`: `subject` such as `/CN=bench`, alternative names such as
    /// `IP:127.0.0.1,DNS:localhost` (none when empty), valid for so many days (negative: expired).
    ///
    /// # Errors
    /// When `openssl` refuses.
    pub fn issue(&self, name: &str, subject: &str, alternatives: &str, days: i32) -> Result<()> {
        self.genkey(name)?;
        let (key, csr, crt, ext) =
            (format!("{name}.key"), format!("{name}.csr"), format!("{name}.crt"), format!("{name}.ext"));
        self.openssl(&["req", "-new", "-key", &key, "-out", &csr], &["-subj", subject])?;
        let names =
            if alternatives.is_empty() { String::new() } else { format!("subjectAltName={alternatives}\n") };
        fs::write(self.dir.join(&ext), format!("basicConstraints=CA:FALSE\n{names}"))?;
        let days = days.to_string();
        let sign = ["x509", "-req", "-in", &csr, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
        let rest = ["-out", &crt, "-days", &days, "-extfile", &ext];
        self.openssl(&[&sign[..], &rest, self.signature.digest()].concat(), &[])
    }

    /// Makes `crl.pem`, with these certificates revoked.
    ///
    /// # Errors
    /// When `openssl` refuses.
    pub fn revoke(&self, names: &[&str]) -> Result<()> {
        let ca = ["-config", "ca.conf", "-keyfile", "ca.key", "-cert", "ca.crt"];
        for name in names {
            self.openssl(&[&["ca", "-revoke", &format!("{name}.crt")], &ca[..]].concat(), &[])?;
        }
        self.openssl(&[&["ca", "-gencrl", "-out", "crl.pem"], &ca[..]].concat(), &[])
    }

    /// Puts a passphrase on a key: `name.key` becomes `name.locked`.
    ///
    /// # Errors
    /// When `openssl` refuses.
    pub fn lock(&self, name: &str, passphrase: &str) -> Result<()> {
        let (from, to) = (format!("{name}.key"), format!("{name}.locked"));
        let with = format!("pass:{passphrase}");
        self.openssl(&["pkey", "-in", &from, "-out", &to, "-aes256", "-passout", &with], &[])?;
        private(&self.dir.join(to))
    }

    /// Makes `name.key.pk8` of a key: PKCS 8 in DER, as Java wants it.
    ///
    /// # Errors
    /// When `openssl` refuses.
    pub fn to_der(&self, name: &str) -> Result<()> {
        let (from, to) = (format!("{name}.key"), format!("{name}.key.pk8"));
        self.openssl(&["pkcs8", "-topk8", "-nocrypt", "-outform", "DER", "-in", &from, "-out", &to], &[])
    }

    /// A file in the directory.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    /// What a file holds.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, file: &str) -> Result<Vec<u8>> {
        fs::read(self.dir.join(file)).with_context(|| file.to_owned())
    }

    fn genkey(&self, name: &str) -> Result<()> {
        let out = format!("{name}.key");
        self.openssl(&[&["genpkey"], self.signature.key(), &["-out", &out]].concat(), &[])?;
        private(&self.dir.join(out))
    }

    fn openssl(&self, first: &[&str], rest: &[&str]) -> Result<()> {
        let mut command = Command::new("openssl");
        command.current_dir(&self.dir).args(first).args(rest).stdin(Stdio::null());
        let out = command.output().context("openssl")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "openssl {first:?}: {said}");
        Ok(())
    }
}

fn private(path: &Path) -> Result<()> {
    Ok(fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?)
}
