use super::*;

fn rules(text: &str) -> Rules {
    Rules::parse(text, "pool_hba.conf").unwrap()
}

fn tcp(addr: &str) -> ConnKind {
    ConnKind::Tcp { tls: false, addr: addr.parse().unwrap() }
}

/// Rule text, connection, database, user, replication; does it match?
type Case = (&'static str, ConnKind, &'static str, &'static str, bool, bool);

#[test]
fn a_rule_matches_as_in_postgresql() {
    let local = ConnKind::Local;
    let v4 = tcp("10.1.2.3");
    let tls = ConnKind::Tcp { tls: true, addr: "10.1.2.3".parse().unwrap() };
    let v6 = tcp("2001:db8::5");
    let cases: &[Case] = &[
        // transport
        ("local all all trust", local, "d", "u", false, true),
        ("local all all trust", v4, "d", "u", false, false),
        ("host all all all trust", local, "d", "u", false, false),
        ("host all all all trust", v4, "d", "u", false, true),
        ("host all all all trust", tls, "d", "u", false, true),
        ("hostssl all all all trust", v4, "d", "u", false, false),
        ("hostssl all all all trust", tls, "d", "u", false, true),
        ("hostnossl all all all trust", v4, "d", "u", false, true),
        ("hostnossl all all all trust", tls, "d", "u", false, false),
        ("hostgssenc all all all trust", v4, "d", "u", false, false),
        ("hostnogssenc all all all trust", v4, "d", "u", false, true),
        // addresses
        ("host all all 10.0.0.0/8 trust", v4, "d", "u", false, true),
        ("host all all 10.9.9.9/8 trust", v4, "d", "u", false, true),
        ("host all all 11.0.0.0/8 trust", v4, "d", "u", false, false),
        ("host all all 10.1.2.3/32 trust", v4, "d", "u", false, true),
        ("host all all 10.1.2.2/32 trust", v4, "d", "u", false, false),
        ("host all all 10.1.2.2/31 trust", v4, "d", "u", false, true),
        ("host all all 0.0.0.0/0 trust", v4, "d", "u", false, true),
        ("host all all 0.0.0.0/0 trust", v6, "d", "u", false, false),
        ("host all all ::/0 trust", v4, "d", "u", false, false),
        ("host all all ::/0 trust", v6, "d", "u", false, true),
        ("host all all 2001:db8::/32 trust", v6, "d", "u", false, true),
        ("host all all 2001:db9::/32 trust", v6, "d", "u", false, false),
        ("host all all 10.1.0.0 255.255.0.0 trust", v4, "d", "u", false, true),
        ("host all all 10.2.0.0 255.255.0.0 trust", v4, "d", "u", false, false),
        ("host all all 2001:db8:: ffff:ffff:: trust", v6, "d", "u", false, true),
        ("host all all 10.0.0.0/8 trust", tcp("::ffff:10.1.2.3"), "d", "u", false, true),
        // databases
        ("local d all trust", local, "d", "u", false, true),
        ("local d all trust", local, "D", "u", false, false),
        ("local a,d all trust", local, "d", "u", false, true),
        ("local a, d all trust", local, "d", "u", false, true),
        ("local sameuser all trust", local, "u", "u", false, true),
        ("local sameuser all trust", local, "d", "u", false, false),
        ("local \"all\" all trust", local, "d", "u", false, false),
        ("local \"all\" all trust", local, "all", "u", false, true),
        ("local \"sameuser\" all trust", local, "u", "u", false, false),
        ("local /^db[0-9]+$ all trust", local, "db17", "u", false, true),
        ("local /^db[0-9]+$ all trust", local, "xdb17", "u", false, false),
        ("local \"/^a{1,2}$\" all trust", local, "aa", "u", false, true),
        // replication
        ("local all all trust", local, "", "u", true, false),
        ("local replication all trust", local, "", "u", true, true),
        ("local replication all trust", local, "replication", "u", false, false),
        ("local \"replication\" all trust", local, "replication", "u", false, true),
        ("local \"replication\" all trust", local, "replication", "u", true, false),
        ("local d,replication all trust", local, "", "u", true, true),
        // users
        ("local all u trust", local, "d", "u", false, true),
        ("local all v trust", local, "d", "u", false, false),
        ("local all v,u trust", local, "d", "u", false, true),
        ("local all \"all\" trust", local, "d", "u", false, false),
        ("local all \"+u\" trust", local, "d", "+u", false, true),
        ("local all \"@u\" trust", local, "d", "@u", false, true),
        ("local all /admin trust", local, "d", "xadminx", false, true),
        ("local all \"a b\" trust", local, "d", "a b", false, true),
    ];
    for (text, conn, database, user, replication, expected) in cases {
        let found = rules(text).find(conn, database, user, *replication).is_some();
        assert_eq!(found, *expected, "{text}: {conn:?} {database} {user} {replication}");
    }
}

#[test]
fn the_first_match_wins_and_no_match_is_none() {
    let rules = rules(
        "# who may come in\n\
         local  all       all                  trust\n\
         host   all       mallory 0.0.0.0/0    reject\n\
         host   shop      all     10.0.0.0/8   md5\n\
         host   all       all     10.0.0.0/8   scram-sha-256\n\
         host   all       all     127.0.0.1/32 password\n",
    );
    let found =
        |conn, database, user| rules.find(&conn, database, user, false).map(|rule| (rule.line, rule.method));
    assert_eq!(found(ConnKind::Local, "shop", "mallory"), Some((2, Method::Trust)));
    assert_eq!(found(tcp("10.0.0.1"), "shop", "mallory"), Some((3, Method::Reject)));
    assert_eq!(found(tcp("10.0.0.1"), "shop", "alice"), Some((4, Method::Md5)));
    assert_eq!(found(tcp("10.0.0.1"), "other", "alice"), Some((5, Method::ScramSha256)));
    assert_eq!(found(tcp("127.0.0.1"), "other", "alice"), Some((6, Method::Password)));
    assert_eq!(found(tcp("192.168.0.1"), "other", "alice"), None);
    assert_eq!(Rules::default().find(&ConnKind::Local, "d", "u", false), None);
}

#[test]
fn refuses_by_line_and_field() {
    for (line, told) in [
        ("loacl all all trust", "type: found \"loacl\", expected local, host,"),
        ("\"local\" all all trust", "type: found \"local\""),
        ("local,host all all trust", "type: found a list"),
        ("include other.conf", "type: found \"include\", expected a rule (including files is not supported"),
        ("local", "database: found the end of the line, expected a database"),
        ("local all", "user: found the end of the line, expected a user"),
        ("local all all", "method: found the end of the line, expected a method"),
        ("host all all", "address: found the end of the line"),
        ("host all all trust", "address: found \"trust\", expected all, an address"),
        ("host all all 10.0.0.0/33 trust", "address: found \"10.0.0.0/33\""),
        ("host all all 10.0.0.0/+8 trust", "address: found \"10.0.0.0/+8\""),
        ("host all all 10.0.0.0/ trust", "address: found \"10.0.0.0/\""),
        ("host all all 10.0.0/8 trust", "address: found \"10.0.0/8\""),
        ("host all all ::/129 trust", "address: found \"::/129\""),
        ("host all all fe80::1%eth0/64 trust", "address: found \"fe80::1%eth0/64\""),
        ("host all all 10.0.0.1 trust", "mask: found \"trust\", expected a mask"),
        ("host all all 10.0.0.1 ffff:: trust", "mask: found \"ffff::\""),
        ("host all all db.example.org trust", "address: found \"db.example.org\", expected all"),
        ("host all all .example.org trust", "address: found \".example.org\""),
        ("host all all samehost trust", "address: found \"samehost\", expected all"),
        ("host all all samenet trust", "address: found \"samenet\""),
        ("local all +dba trust", "user: found \"+dba\", expected a name, all or /regex (membership"),
        ("local samerole all trust", "database: found \"samerole\", expected a name"),
        ("local @dbs all trust", "database: found \"@dbs\", expected names themselves (@file is not"),
        ("local all @users trust", "user: found \"@users\""),
        ("local /( all trust", "database: found \"/(\", expected a regular expression"),
        ("local all / trust", "user: found \"/\", expected a regular expression"),
        ("local all all ldap ldapserver=x", "method: found \"ldap\", expected trust, reject,"),
        ("local all all truts", "method: found \"truts\", expected trust, reject,"),
        ("local all all trust map=x", "option: found \"map=x\", expected the end of the line"),
        ("local \"all all trust", "line: found a quote that is not closed"),
    ] {
        let told_whole =
            Rules::parse(&format!("local all all trust\n{line}\n"), "pool_hba.conf").unwrap_err().to_string();
        assert!(told_whole.starts_with(&format!("pool_hba.conf:2: {told}")), "{line}: {told_whole}");
    }
}

#[test]
fn every_method_that_is_not_built_is_named() {
    for method in ["gss", "sspi", "ident", "peer", "ldap", "radius", "cert", "pam", "bsd"] {
        let told = Rules::parse(&format!("local all all {method}"), "hba").unwrap_err().to_string();
        assert!(told.contains(&format!("method {method} is not supported by this version")), "{told}");
    }
}

#[test]
fn a_file_is_refused_whole_with_every_error() {
    let errors = Rules::parse("local all all trust\nlocal all all peer\nhost x\n", "hba").unwrap_err();
    assert_eq!(errors.iter().map(|error| error.line).collect::<Vec<_>>(), [Some(2), Some(3)]);
}
