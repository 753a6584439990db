//! `load`: includes, the password file, the rules, relative paths.

use std::path::Path;

use config::hba::ConnKind;
use config::secrets::Secret;
use tempfile::TempDir;

use crate::NODE;

/// Writes files into a new directory; the first is `pgweir.yaml`.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}

fn load(directory: &TempDir) -> Result<config::Config, String> {
    let place = format!("{}/", directory.path().display());
    config::load(&directory.path().join("pgweir.yaml"))
        .map_err(|errors| errors.to_string().replace(&place, ""))
}

fn refusal(files: &[(&str, &str)]) -> String {
    load(&directory(files)).unwrap_err()
}

#[test]
fn side_files_stand_beside_the_configuration() {
    let directory = directory(&[
        ("pgweir.yaml", &format!("{NODE}enable_pool_hba: on\npid_file: run/p.pid\nssl_cert: /abs/c\n")),
        ("pool_passwd", "alice:TEXTopensesame\n"),
        ("pool_hba.conf", "local all all scram-sha-256\n"),
    ]);
    let config = load(&directory).unwrap();
    assert!(
        matches!(config.secrets.get("alice"), Some(Secret::Plain(password)) if password.expose() == "opensesame")
    );
    assert!(config.hba.as_ref().unwrap().find(&ConnKind::Local, "d", "u", false).is_some());
    assert_eq!(config.pool_passwd, directory.path().join("pool_passwd"));
    assert_eq!(config.pid_file, Some(directory.path().join("run/p.pid")));
    assert_eq!(config.ssl_cert.as_deref(), Some(Path::new("/abs/c")));
    assert!(!format!("{config:?}").contains("opensesame"));
}

#[test]
fn the_default_password_file_may_be_missing_and_a_given_one_may_not() {
    let config = load(&directory(&[("pgweir.yaml", NODE)])).unwrap();
    assert_eq!(config.secrets.users().count(), 0);
    assert_eq!(config.hba, None);
    for key in ["pool_passwd: pool_passwd", "pool_passwd: other", "enable_pool_hba: on"] {
        let told = refusal(&[("pgweir.yaml", &format!("{NODE}{key}\n"))]);
        assert!(
            told.contains("No such file or directory") && told.contains("expected a readable text file"),
            "{told}"
        );
    }
}

#[test]
fn side_files_are_refused_by_their_own_lines() {
    let told = refusal(&[
        ("pgweir.yaml", &format!("{NODE}enable_pool_hba: on\n")),
        ("pool_passwd", "alice:TEXTx\nbob:hush\n"),
        ("pool_hba.conf", "# head\nlocal all all radius\n"),
    ]);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("pool_passwd:2: secret: found a secret of no known kind"), "{told}");
    assert!(lines[1].starts_with("pool_hba.conf:2: method: found \"radius\""), "{told}");
    assert!(lines[1].contains("method radius is not supported by this version"), "{told}");
    assert!(!told.contains("hush"));
}

#[test]
fn the_rules_are_not_read_while_they_are_off() {
    let files = [("pgweir.yaml", NODE), ("pool_hba.conf", "nonsense\n")];
    assert_eq!(load(&directory(&files)).unwrap().hba, None);
}

#[test]
fn includes_are_relative_to_their_file_and_paths_to_the_first() {
    let config_directory = directory(&[
        ("pgweir.yaml", "include: [conf.d/nodes.yaml, conf.d/pools.yaml]\nport: 5433\n"),
        ("conf.d/nodes.yaml", &format!("{NODE}pid_file: p.pid\n")),
        ("conf.d/pools.yaml", "include: more.yaml\npool_mode: session\n"),
        ("conf.d/more.yaml", "# nothing set\n"),
    ]);
    let config = load(&config_directory).unwrap();
    assert_eq!((config.port, config.pool_mode), (5433, config::PoolMode::Session));
    assert_eq!(config.backends.len(), 1);
    assert_eq!(config.pid_file, Some(config_directory.path().join("p.pid")));
}

#[test]
fn includes_are_refused_where_they_are_wrong() {
    let main = format!("{NODE}include: a.yaml\nport: 1\n");
    for (included, told) in [
        (None, "pgweir.yaml:2: include: found no such file (a.yaml), expected a file to include"),
        (Some("workers: x\n"), "a.yaml:1: workers: found \"x\", expected a number from 1 to 1024, or auto"),
        (Some("\nport: 2\n"), "a.yaml:2: port: found a second port, expected each key once"),
        (
            Some("include: pgweir.yaml\n"),
            "a.yaml:1: include: found a file that includes this one (pgweir.yaml), expected a file to include",
        ),
        (
            Some("include: a.yaml\n"),
            "a.yaml:1: include: found a file that includes this one (a.yaml), expected a file to include",
        ),
        (Some("include: 5\n"), "a.yaml:1: include: found 5, expected a list: text"),
        (Some("- x\n"), "a.yaml:1: found a list, expected a mapping of keys to values"),
    ] {
        let mut files = vec![("pgweir.yaml", main.as_str())];
        files.extend(included.map(|text| ("a.yaml", text)));
        assert_eq!(refusal(&files), told);
    }
}

#[test]
fn includes_go_only_so_deep() {
    let names: Vec<String> = (0..20).map(|n| format!("{n}.yaml")).collect();
    let texts: Vec<String> = (0..20).map(|n| format!("include: {}.yaml\n", n + 1)).collect();
    let main = format!("{NODE}include: 0.yaml\n");
    let mut files = vec![("pgweir.yaml", main.as_str())];
    files.extend(names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())));
    let told = refusal(&files);
    assert!(told.contains("too many includes inside includes"), "{told}");
}

#[test]
fn includes_are_bounded_in_number() {
    let main = format!("{NODE}include: [{}]\n", "empty.yaml, ".repeat(300));
    let told = refusal(&[("pgweir.yaml", &main), ("empty.yaml", "# nothing\n")]);
    assert!(told.starts_with("pgweir.yaml:2: include: found too many files (empty.yaml)"), "{told}");
    // Each file includes two, which are files under another name: no cycle is seen, and it ends all the same.
    let twice = "include: [x/../a.yaml, x/../x/../a.yaml]\n";
    let main = format!("{NODE}include: a.yaml\n");
    let told = refusal(&[("pgweir.yaml", &main), ("a.yaml", twice), ("x/y", "")]);
    assert!(told.contains("too many includes inside includes"), "{told}");
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let empty = directory(&[]);
    assert!(load(&empty).unwrap_err().starts_with("pgweir.yaml: found No such file or directory"));
    std::fs::write(empty.path().join("pgweir.yaml"), b"port: \xff\n").unwrap();
    assert_eq!(
        load(&empty).unwrap_err(),
        "pgweir.yaml: found bytes that are not UTF-8, expected a readable text file"
    );
    std::fs::write(empty.path().join("pgweir.yaml"), "#".repeat((1 << 20) + 1)).unwrap();
    assert!(load(&empty).unwrap_err().contains("found more than 1048576 bytes"));
    std::fs::remove_file(empty.path().join("pgweir.yaml")).unwrap();
    std::fs::create_dir(empty.path().join("pgweir.yaml")).unwrap();
    assert!(load(&empty).is_err());
}

#[test]
fn a_password_file_for_everybody_is_warned_about() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = directory(&[("pgweir.yaml", NODE), ("pool_passwd", "a:TEXTb\n")]);
    let path = directory.path().join("pool_passwd");
    for (mode, warned) in [(0o644, true), (0o600, false), (0o640, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let warnings = load(&directory).unwrap().warnings;
        assert_eq!(warnings.iter().any(|warning| warning.message.contains("everybody")), warned, "{mode:o}");
    }
}

#[test]
fn changed_side_files_are_in_the_plan() {
    let directory = directory(&[
        ("pgweir.yaml", &format!("{NODE}enable_pool_hba: on\n")),
        ("pool_passwd", "a:TEXTb\n"),
        ("pool_hba.conf", "local all /^a$ trust\n"),
    ]);
    let old = load(&directory).unwrap();
    assert!(config::Plan::between(&old, &load(&directory).unwrap()).is_empty());
    std::fs::write(directory.path().join("pool_passwd"), "a:TEXTc\n").unwrap();
    std::fs::write(directory.path().join("pool_hba.conf"), "local all /^b$ trust\n").unwrap();
    let plan = config::Plan::between(&old, &load(&directory).unwrap());
    assert_eq!(
        plan.to_string(),
        "pool_passwd: its content has changed\npool_hba_file: its rules have changed"
    );
}

#[test]
fn unset_socket_directories_are_used_only_where_they_exist() {
    let config = load(&directory(&[("pgweir.yaml", NODE)])).unwrap();
    assert_eq!(config.unix_socket_directories.is_empty(), !Path::new("/var/run/pgweir").is_dir());
    let given = format!("{NODE}unix_socket_directories: [/nowhere/at/all]\n");
    let config = load(&directory(&[("pgweir.yaml", &given)])).unwrap();
    assert_eq!(config.unix_socket_directories, ["/nowhere/at/all"]);
}
