//! Who may come in by PgBouncer's `auth_type` and `userlist.txt`: as rules and secrets of ours.

use super::bouncer::until_quote;
use super::draft::{Draft, Place};
use crate::passwd::quoted;

/// Writes the rules for an `auth_type`, where it is one that rules can say.
pub(super) fn write(draft: &mut Draft, kind: &str, place: &Place) {
    let method = match kind {
        "hba" => return draft.set("enable_pool_hba", "on".to_owned(), "auth_type", place),
        "trust" => "trust",
        "any" => {
            draft.note(
                place,
                "auth_type",
                "any makes everybody one user there; here it is trust, and each comes as the user it names",
            );
            "trust"
        }
        "plain" => "password",
        "md5" => "md5",
        "scram-sha-256" => "scram-sha-256",
        "cert" => "cert",
        "pam" => "pam",
        "ldap" => {
            return draft.note(
                place,
                "auth_type",
                "ldap: write a line with its options into pool_hba.conf and set enable_pool_hba",
            );
        }
        _ => {
            return draft.note(
                place,
                "auth_type",
                "not known to this import: everybody needs scram-sha-256 until enable_pool_hba is set",
            );
        }
    };
    draft.set("enable_pool_hba", "on".to_owned(), "auth_type", place);
    let rules = match method {
        // Over a socket there is no certificate.
        "cert" => "hostssl all all all cert\n".to_owned(),
        method => format!("local all all     {method}\nhost  all all all {method}\n"),
    };
    draft.beside(
        "pool_hba.conf",
        format!("# From auth_type = {kind} by pgweir import; the grammar of pg_hba.conf.\n{rules}"),
    );
}

/// The lines of `pool_passwd` for a `userlist.txt`; what cannot be read is noted, without its secret.
pub(super) fn passwords(draft: &mut Draft, content: &str, file: &str) -> String {
    let mut out = String::new();
    for (index, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        let place = Place { file: file.to_owned(), line: index + 1 };
        match entry(line) {
            Some((user, secret)) if secret.is_empty() => {
                draft.note(&place, &user, "no secret, so no line: nobody logs in with an empty password");
            }
            Some((user, secret)) => {
                let known = config::secrets::Secret::stored(&secret).is_some() && !secret.starts_with("TEXT");
                let secret = if known { secret } else { format!("TEXT{secret}") };
                out.push_str(&format!("{}:{secret}\n", quoted(&user)));
            }
            None => draft.note(&place, "the line", "not a user and its secret, each in double quotes"),
        }
    }
    out
}

fn entry(line: &str) -> Option<(String, String)> {
    let (user, rest) = until_quote(line.strip_prefix('"')?, '"')?;
    let (secret, _) = until_quote(rest.trim_start().strip_prefix('"')?, '"')?;
    (!user.is_empty()).then_some((user, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_userlist_becomes_pool_passwd() {
        let mut draft = Draft::default();
        let list = "; users\n\"bob\" \"secret\"\n\"a:b\" \"md521f3163f8f86fa10bdefbfbd502a8f06\"\n\
            \"x\"\"y\" \"p\"\"q\"  extra\n\"none\" \"\"\nbroken hush\n\"odd\" \"TEXTile\"\n";
        let made = passwords(&mut draft, list, "userlist.txt");
        assert_eq!(
            made,
            "bob:TEXTsecret\n\"a:b\":md521f3163f8f86fa10bdefbfbd502a8f06\n\"x\"\"y\":TEXTp\"q\nodd:TEXTTEXTile\n"
        );
        let read = config::secrets::Passwords::parse(&made, "pool_passwd").unwrap();
        assert_eq!(read.users().count(), 4);
        assert_eq!(draft.notes().len(), 2);
        assert!(!draft.yaml().contains("hush"));
    }
}
