//! AES secrets: passwords in `pool_passwd` that only the owner of `pool_key_file` can read.
//!
//! Pgpool-II's format, so that its files can be used (`aes_encrypt_with_password` in src/utils/ssl_utils.c): AES-256
//! in CBC mode, key and initialisation vector by OpenSSL's `EVP_BytesToKey` with SHA-1 and without salt, then base64.
//! It hides passwords from who reads one of the two files; it says nothing about who changed them.

use std::fmt;
use std::path::Path;

use aes::Aes256;
use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha1::{Digest as _, Sha1};

use crate::error::ConfigErrors;
use crate::files;

/// The largest key file that is read.
const MAX_KEY_BYTES: u64 = 64 * 1024;

/// The key. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct PoolKey {
    key: [u8; 32],
    start: [u8; 16],
}

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey(********)")
    }
}

impl PoolKey {
    /// From the first line of a file.
    ///
    /// # Errors
    /// It cannot be read, or there is nothing on that line.
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let text = files::read(path, MAX_KEY_BYTES)?;
        let line = text.lines().next().unwrap_or_default();
        if line.is_empty() {
            let error = files::error(&path.display().to_string(), Some(1), "an empty line", "the key");
            return Err(ConfigErrors::new(vec![error]));
        }
        Ok(Self::new(line))
    }

    /// From the text itself.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut bytes = Vec::new();
        let mut last = Vec::new();
        while bytes.len() < 48 {
            last = Sha1::new().chain_update(&last).chain_update(text).finalize().to_vec();
            bytes.extend_from_slice(&last);
        }
        let (mut key, mut start) = ([0; 32], [0; 16]);
        key.iter_mut().zip(&bytes).for_each(|(slot, byte)| *slot = *byte);
        start.iter_mut().zip(bytes.iter().skip(32)).for_each(|(slot, byte)| *slot = *byte);
        Self { key, start }
    }

    /// The password as it stands behind `AES` in the file.
    #[must_use]
    pub fn encrypt(&self, password: &str) -> String {
        let cipher = cbc::Encryptor::<Aes256>::new(&self.key.into(), &self.start.into());
        BASE64.encode(cipher.encrypt_padded_vec_mut::<Pkcs7>(password.as_bytes()))
    }

    /// The password; `None` when this is not the key, or the text is not of this kind.
    #[must_use]
    pub fn decrypt(&self, text: &str) -> Option<String> {
        let cipher = cbc::Decryptor::<Aes256>::new(&self.key.into(), &self.start.into());
        let bytes = cipher.decrypt_padded_vec_mut::<Pkcs7>(&BASE64.decode(text).ok()?).ok()?;
        String::from_utf8(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_what_openssl_makes() {
        // printf secret | openssl enc -aes-256-cbc -md sha1 -nosalt -k 'the key' -base64
        assert_eq!(PoolKey::new("the key").encrypt("secret"), "oG/jUB9iWzfKEFrwqbxRpQ==");
    }

    #[test]
    fn only_the_key_opens_it() {
        let key = PoolKey::new("the key");
        for password in ["x", "exactly 16 bytes", "p\u{e4}ss w\u{f6}rd: \"#\\"] {
            assert_eq!(key.decrypt(&key.encrypt(password)).as_deref(), Some(password));
            assert_ne!(PoolKey::new("another").decrypt(&key.encrypt(password)).as_deref(), Some(password));
        }
        for nonsense in ["", "AAAA", "not base64", "AAAAAAAAAAAAAAAAAAAAAA=="] {
            assert_eq!(key.decrypt(nonsense), None, "{nonsense}");
        }
    }
}
