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
        // PostgreSQL too takes that for a host's name.
        ("host all all trust", "method: found the end of the line, expected a method"),
        ("host all all 10.0.0.0/33 trust", "address: found \"10.0.0.0/33\""),
        ("host all all 10.0.0.0/+8 trust", "address: found \"10.0.0.0/+8\""),
        ("host all all 10.0.0.0/ trust", "address: found \"10.0.0.0/\""),
        ("host all all 10.0.0/8 trust", "address: found \"10.0.0/8\""),
        ("host all all ::/129 trust", "address: found \"::/129\""),
        ("host all all fe80::1%eth0/64 trust", "address: found \"fe80::1%eth0/64\""),
        ("host all all 10.0.0.1 trust", "mask: found \"trust\", expected a mask"),
        ("host all all 10.0.0.1 ffff:: trust", "mask: found \"ffff::\""),
        (
            "host all all 10.0.0.256 trust",
            "address: found \"10.0.0.256\", expected all, samehost, samenet, an address",
        ),
        ("host all all . trust", "address: found \".\""),
        ("host all all db.example.org/24 trust", "address: found \"db.example.org/24\""),
        ("host all all http://x trust", "address: found \"http://x\""),
        ("host all all a,b trust", "address: found a list"),
        (
            "local @dbs all trust",
            "database: found @dbs (a file that cannot be read here), expected a file of names",
        ),
        ("local all @users trust", "user: found @users"),
        ("local /( all trust", "database: found \"/(\", expected a regular expression"),
        ("local all / trust", "user: found \"/\", expected a regular expression"),
        ("host all all all cert", "method: found \"cert\", expected cert on hostssl lines only"),
        ("host all all all peer", "method: found \"peer\", expected peer on local lines only"),
        ("local all all ldap", "option: found what stands there together, expected ldapserver or ldapurl"),
        ("local all all ldap ldapserver=x", "option: found what stands there together, expected ldapbasedn,"),
        ("local all all ldap ldapserver=x ldapport=0 ldapprefix=a", "option: found \"0\", expected a port"),
        (
            "local all all ldap ldapserver=x ldapprefix=a ldapbasedn=b",
            "option: found what stands there together, expected ldapprefix and ldapsuffix, or",
        ),
        ("local all all ldap ldapurl=http://x/y", "option: found \"http://x/y\", expected ldap[s]://"),
        (
            "local all all ldap ldapserver=x pamservice=y",
            "option: found \"pamservice\", expected an option of ldap",
        ),
        ("local all all pam pamservice=../x", "option: found \"../x\", expected the name of a service"),
        ("local all all pam pam_use_hostname=yes", "option: found \"yes\", expected 0 or 1"),
        ("local all all md5 pamservice=x", "option: found \"pamservice\", expected an option that this"),
        (
            "hostssl all all all cert clientcert=verify-ca",
            "option: found \"verify-ca\", expected verify-full",
        ),
        ("host all all all trust clientcert=verify-ca", "option: found \"clientcert\", expected an option"),
        ("hostssl all all all cert clientname=XN", "option: found \"XN\", expected CN or DN"),
        ("local all all peer map", "option: found \"map\", expected name=value"),
        ("local all all truts", "method: found \"truts\", expected trust, reject,"),
        ("local all all trust map=x", "option: found \"map\", expected an option that this method has"),
        ("local \"all all trust", "line: found a quote that is not closed"),
    ] {
        let told_whole =
            Rules::parse(&format!("local all all trust\n{line}\n"), "pool_hba.conf").unwrap_err().to_string();
        assert!(told_whole.starts_with(&format!("pool_hba.conf:2: {told}")), "{line}: {told_whole}");
    }
}

#[test]
fn every_method_that_is_not_built_is_named() {
    for method in ["gss", "sspi", "ident", "radius", "bsd", "oauth"] {
        let told = Rules::parse(&format!("local all all {method}"), "hba").unwrap_err().to_string();
        assert!(told.contains(&format!("method {method} is not supported by this version")), "{told}");
    }
}

#[test]
fn a_file_is_refused_whole_with_every_error() {
    let errors = Rules::parse("local all all trust\nlocal all all gss\nhost x\n", "hba").unwrap_err();
    assert_eq!(errors.iter().map(|error| error.line).collect::<Vec<_>>(), [Some(2), Some(3)]);
}

#[test]
fn members_of_roles_match_as_far_as_they_are_known() {
    let rules = rules("local all +dba trust\nlocal samerole all md5\nlocal all \"+x\" password\n");
    assert!(rules.uses_groups());
    assert!(!self::rules("local all \"+x\" password\n").uses_groups());
    let found = |database, user, groups: &[&str]| {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        let host = HostName::NotAsked;
        let request =
            Request { conn: &ConnKind::Local, database, user, replication: false, groups: &groups, host };
        match rules.find_for(&request) {
            Found::Rule(rule) => Some(rule.method),
            Found::Nothing | Found::AskForName => None,
        }
    };
    assert_eq!(found("d", "joe", &["joe", "dba"]), Some(Method::Trust));
    assert_eq!(found("dba", "joe", &["joe"]), None);
    assert_eq!(found("team", "joe", &["joe", "team"]), Some(Method::Md5));
    assert_eq!(found("joe", "joe", &["joe"]), Some(Method::Md5));
    assert_eq!(found("d", "+x", &["+x"]), Some(Method::Password));
}

#[test]
fn this_machines_addresses_and_networks() {
    let at = |text| {
        rules(text).at(vec![Interface {
            address: "10.1.2.3".parse().unwrap(),
            mask: "255.255.0.0".parse().unwrap(),
        }])
    };
    for (text, client, matches) in [
        ("host all all samehost trust", "10.1.2.3", true),
        ("host all all samehost trust", "10.1.2.4", false),
        ("host all all samenet trust", "10.1.9.9", true),
        ("host all all samenet trust", "10.2.0.1", false),
        ("host all all samenet trust", "::1", false),
    ] {
        assert_eq!(at(text).find(&tcp(client), "d", "u", false).is_some(), matches, "{text} {client}");
    }
    assert!(rules("host all all samehost trust").find(&tcp("10.1.2.3"), "d", "u", false).is_none());
}

#[test]
fn names_of_addresses_are_asked_for_when_a_rule_needs_one() {
    let rules = rules(
        "host  app  all .example.com    md5\n\
         host  all  joe DB1.Example.com password\n\
         local all  all trust\n\
         host  all  all \"samehost\"     reject\n\
         host  all  zoe 10.0.0.0/8      trust\n",
    );
    let client = tcp("10.1.2.3");
    let found = |database, user, host| {
        let request = Request { conn: &client, database, user, replication: false, groups: &[], host };
        match rules.find_for(&request) {
            Found::Rule(rule) => format!("{:?}", rule.method),
            other => format!("{other:?}"),
        }
    };
    let (asked, nameless) = (HostName::NotAsked, HostName::Nameless);
    let named = HostName::Verified;
    for (database, user, host, expected) in [
        ("app", "x", asked, "AskForName"),
        ("app", "x", nameless, "Nothing"),
        ("app", "x", named("db1.EXAMPLE.com"), "Md5"),
        ("app", "x", named(".example.com"), "Md5"),
        ("app", "x", named("example.com"), "Nothing"),
        ("app", "x", named("com"), "Nothing"),
        ("app", "x", named("db1.example.com.evil.org"), "Nothing"),
        ("app", "joe", named("db1.example.com"), "Md5"),
        ("other", "joe", named("db1.example.com"), "Password"),
        ("other", "joe", named("db2.example.com"), "Nothing"),
        ("other", "joe", named("xdb1.example.com"), "Nothing"),
        ("other", "x", named("samehost"), "Reject"),
        // Every rule that is for others is passed over without a question.
        ("other", "zoe", asked, "AskForName"),
        ("other", "zoe", nameless, "Trust"),
    ] {
        assert_eq!(found(database, user, host), expected, "{database} {user} {host:?}");
    }
    let local = Request {
        conn: &ConnKind::Local,
        database: "app",
        user: "x",
        replication: false,
        groups: &[],
        host: asked,
    };
    assert!(matches!(rules.find_for(&local), Found::Rule(rule) if rule.line == 3), "sockets have no names");
}

#[test]
fn names_come_from_files_too() {
    let read = |name: &str| match name {
        "users" => Ok("joe, \"kim\"\n@more # and these\n".to_owned()),
        "more" => Ok("/^team\n".to_owned()),
        "loop" => Ok("@loop\n".to_owned()),
        "empty" => Ok("# nobody\n".to_owned()),
        _ => Err("no such file".to_owned()),
    };
    let parse = |text: &str| Rules::parse_with(text, "hba", &read);
    let rules = parse("local all @users,zoe trust\n").unwrap();
    for (user, matches) in [("joe", true), ("kim", true), ("team7", true), ("zoe", true), ("users", false)] {
        assert_eq!(rules.find(&ConnKind::Local, "d", user, false).is_some(), matches, "{user}");
    }
    for (text, told) in [
        ("local all @nowhere trust", "hba:1: user: found @nowhere (no such file)"),
        ("local @loop all trust", "files of names that do not name each other"),
        ("local all @empty trust", "files without a name in them"),
    ] {
        let whole = parse(text).unwrap_err().to_string();
        assert!(whole.contains(told), "{text}: {whole}");
    }
}

#[test]
fn options_are_read() {
    let rules = rules(
        "hostssl all all all cert map=m clientname=DN\n\
         hostssl all all all md5 clientcert=verify-ca\n\
         host all all all ldap ldapserver=\"a b\" ldapport=1389 ldaptls=1 ldapprefix=\"cn=\" ldapsuffix=\", dc=x\"\n\
         host all all all ldap ldapurl=\"ldaps://dir.example:636/dc=x??sub?(cn=$username)\"\n\
         host all all all pam pamservice=db pam_use_hostname=1\n",
    );
    let all: Vec<&Rule> = rules.iter().collect();
    assert_eq!(all[0].options.map.as_deref(), Some("m"));
    assert_eq!(all[0].options.client_cert, ClientCert::VerifyFull);
    assert_eq!(all[0].options.cert_name, CertName::DistinguishedName);
    assert_eq!(all[1].options.client_cert, ClientCert::VerifyCa);
    let simple = &all[2].options.ldap;
    assert_eq!(
        (simple.servers.as_slice(), simple.port, simple.tls),
        (&["a".to_owned(), "b".to_owned()][..], Some(1389), true)
    );
    assert_eq!((simple.prefix.as_str(), simple.suffix.as_str()), ("cn=", ", dc=x"));
    assert_eq!((all[4].options.pam.service.as_deref(), all[4].options.pam.by_name), (Some("db"), true));
    let told = Rules::parse("host all all all ldap ldapurl=ldap://h/dc=x?uid?sub?(cn=$username)", "hba");
    assert!(told.is_err(), "an attribute and a filter");
}
