//! Nothing that can be in a file makes the readers panic, and what they refuse they explain.

use config::KEYS;
use proptest::prelude::*;

/// A scalar, list or mapping as somebody might type it.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        "[0-9]{1,25}(\\.[0-9]{0,25})? ?(us|ms|s|min|h|d|B|kB|MB|GB|TB|x)?",
        "0[0-9]{0,30}",
        "[a-z_:(),.*/@+]{0,12}",
        any::<String>().prop_map(|text| format!("{text:?}")),
        Just("{hostname: a}".to_owned()),
        Just("[{hostname: a, port: 1}, {hostname: b, weight: 2}]".to_owned()),
        Just("[a, 1, {b: c}, null, true]".to_owned()),
        Just("on".to_owned()),
        Just(String::new()),
    ]
}

fn line() -> impl Strategy<Value = String> {
    (0..KEYS.len(), value()).prop_map(|(key, value)| format!("{}: {value}\n", KEYS[key].name))
}

proptest! {
    #[test]
    fn any_text(text in any::<String>()) {
        let _ = config::parse(&text, "t");
        let _ = config::hba::Rules::parse(&text, "t");
        let _ = config::secrets::Passwords::parse(&text, "t");
    }

    #[test]
    fn text_of_yaml_characters(text in "[a-c0-9:{}\\[\\],&*!|>'\"%@#?\\-. \n\t~]{0,60}") {
        let _ = config::parse(&text, "t");
    }

    #[test]
    fn keys_with_any_value(lines in proptest::collection::vec(line(), 1..6)) {
        match config::parse(&lines.concat(), "t") {
            // What was taken can be shown, and shown values are never empty.
            Ok(config) => prop_assert!(config.rows().iter().all(|row| !row.value.is_empty())),
            Err(errors) => {
                prop_assert!(errors.iter().count() > 0);
                prop_assert!(errors.iter().all(|error| !error.found.is_empty() && !error.expected.is_empty()));
            }
        }
    }

    #[test]
    fn lines_of_rule_characters(text in "((local|host|hostssl|all|trust|md5|10.0.0.0/8|::1/128|\"|,|/[a-z(]|@x|#|\\\\| |\n)){0,30}") {
        if let Ok(rules) = config::hba::Rules::parse(&text, "t") {
            let _ = rules.find(&config::hba::ConnKind::Local, "d", "u", false);
        }
    }

    #[test]
    fn lines_of_secrets(text in "(\"?[a:]{0,3}\"?:?(TEXT|md5|SCRAM-SHA-256\\$|AES)?[0-9a-f$:=]{0,40}\n){0,4}") {
        let _ = config::secrets::Passwords::parse(&text, "t");
    }

    #[test]
    fn a_quoted_user_is_read_back(user in "[^\\p{Cc}]{1,20}", password in "[^\\p{Cc}]{1,20}") {
        let line = format!("\"{}\":TEXT{password}\n", user.replace('"', "\"\""));
        let secrets = config::secrets::Passwords::parse(&line, "t").unwrap();
        let expected = config::secrets::Secret::Plain(config::Masked::new(password));
        prop_assert_eq!(secrets.get(&user), Some(&expected));
    }

    #[test]
    fn text_survives_being_shown(text in "[^\\p{Cc}]{1,20}") {
        let quoted = serde_free_quote(&text);
        let config = config::parse(&format!("backends: [{{hostname: a}}]\nsr_check_user: {quoted}\n"), "t").unwrap();
        prop_assert_eq!(&config.sr_check_user, &text);
        let shown = config.rows().into_iter().find(|row| row.key == "sr_check_user").unwrap().value;
        let again = config::parse(&format!("backends: [{{hostname: a}}]\nsr_check_user: {shown}\n"), "t").unwrap();
        prop_assert_eq!(&again.sr_check_user, &text);
    }
}

/// Single-quoted YAML, another way than the crate's own.
fn serde_free_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
