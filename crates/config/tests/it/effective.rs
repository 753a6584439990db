//! What holds for one database, user or node.

use std::time::Duration;

use cluster::NodeId;
use config::Consistency::{Eventual, ReadYourWrites};
use config::PoolMode::{Session, Transaction};

use crate::parse;

#[test]
fn the_more_specific_override_wins_and_then_the_users() {
    let config = parse(
        "default_pool_size: 10\n\
         databases:\n\
         \x20 \"*\": { pool_size: 11, pool_mode: session }\n\
         \x20 shop: { pool_size: 12, dbname: shop_v2, pool_mode: transaction }\n\
         users:\n\
         \x20 \"*\": { pool_size: 13 }\n\
         \x20 app: { pool_size: 14, pool_mode: session }\n\
         \x20 empty: {}\n",
    )
    .unwrap();
    for (database, user, size, mode) in [
        ("shop", "app", 14, Session),
        ("shop", "other", 12, Transaction),
        ("shop", "empty", 12, Transaction),
        ("x", "app", 14, Session),
        ("x", "other", 13, Session),
    ] {
        assert_eq!(config.pool_size(database, user), size, "{database} {user}");
        assert_eq!(config.pool_mode(database, user), mode, "{database} {user}");
    }
    assert_eq!((config.dbname("shop"), config.dbname("x")), ("shop_v2", "x"));
    let plain = parse("").unwrap();
    assert_eq!(
        (plain.pool_size("d", "u"), plain.pool_mode("d", "u"), plain.dbname("d")),
        (20, Transaction, "d")
    );
    assert_eq!(plain.min_pool_size("d", "u"), 0);
}

#[test]
fn limits_of_a_name_come_before_those_of_all_and_the_general_ones() {
    let config = parse(
        "max_db_connections: 9\nmax_user_client_connections: 8\n\
         databases: { shop: { max_db_connections: 0 }, '*': { max_db_client_connections: 3 } }\n\
         users: { app: { max_user_client_connections: 0, max_user_connections: 2, reserve_pool_size: 1 } }\n",
    )
    .unwrap();
    assert_eq!((config.max_db_connections("shop"), config.max_db_connections("x")), (None, Some(9)));
    assert_eq!(
        (config.max_user_client_connections("app"), config.max_user_client_connections("x")),
        (None, Some(8))
    );
    assert_eq!(config.max_db_client_connections("shop"), Some(3));
    assert_eq!((config.max_user_connections("app"), config.max_user_connections("x")), (Some(2), None));
    assert_eq!((config.reserve_pool_size("x", "app"), config.reserve_pool_size("x", "y")), (1, 0));
}

#[test]
fn consistency_is_overridden_like_the_pool_mode() {
    let config = parse(
        "consistency: eventual\n\
         databases: { shop: { consistency: read_your_writes } }\n\
         users: { report: { consistency: eventual } }\n",
    )
    .unwrap();
    assert_eq!(config.consistency("shop", "app"), ReadYourWrites);
    assert_eq!(config.consistency("shop", "report"), Eventual);
    assert_eq!(config.consistency("other", "app"), Eventual);
    assert_eq!(parse("").unwrap().consistency("d", "u"), ReadYourWrites);
}

#[test]
fn a_node_may_have_its_own_health_check() {
    let config = config::parse(
        "health_check_period: 3s\n\
         sr_check_password: general\n\
         backends:\n\
         \x20 - { hostname: a }\n\
         \x20 - { hostname: b, health_check_period: 1s, health_check_max_retries: 0, health_check_user: u }\n\
         \x20 - { hostname: c, health_check_user: u, health_check_password: own, health_check_database: d }\n",
        "t",
    )
    .unwrap();
    let check = |id| config.health_check(NodeId(id)).unwrap();
    let password = |id| check(id).password.map(|password| password.expose().to_owned());
    assert_eq!((check(0).period, check(0).max_retries), (Duration::from_secs(3), 3));
    assert_eq!((check(0).user.as_str(), check(0).database.as_str()), ("pgweir", "postgres"));
    assert_eq!(password(0).as_deref(), Some("general"));
    assert_eq!((check(1).period, check(1).max_retries), (Duration::from_secs(1), 0));
    // The general password belongs to sr_check_user, not to this node's own user.
    assert_eq!((check(1).user.as_str(), password(1)), ("u", None));
    assert_eq!((check(2).database.as_str(), password(2).as_deref()), ("d", Some("own")));
    assert_eq!(config.health_check(NodeId(3)), None);
    assert!(!format!("{:?}", check(2)).contains("own"));
}

#[test]
fn rows_have_every_key_and_no_secret() {
    let config = parse("sr_check_password: hush\nhealth_check_password: hush\nport: 5433\n").unwrap();
    let rows = config.rows();
    assert_eq!(rows.len(), config::KEYS.len());
    let row = |key| rows.iter().find(|row| row.key == key).unwrap();
    assert_eq!(
        (row("port").value.as_str(), row("port").default, row("port").reloadable),
        ("5433", "9999", false)
    );
    assert!(row("sr_check_password").masked && row("pool_mode").reloadable);
    assert_eq!(row("sr_check_password").value, "********");
    assert!(!format!("{rows:?}{config:?}").contains("hush"));
}

#[test]
fn without_rules_everybody_needs_scram_and_with_none_nobody_comes_in() {
    use config::hba::{ConnKind::Local, Method, Rules};
    let mut config = parse("").unwrap();
    assert_eq!(config.hba_method(&Local, "d", "u", false), Some(Method::ScramSha256));
    // `parse` reads no files: rules that are on and not read must not open the door.
    assert_eq!(parse("enable_pool_hba: on\n").unwrap().hba_method(&Local, "d", "u", false), None);
    config.hba = Some(Rules::parse("local d all trust\n", "hba").unwrap());
    assert_eq!(config.hba_method(&Local, "d", "u", false), Some(Method::Trust));
    assert_eq!(config.hba_method(&Local, "x", "u", false), None);
}
