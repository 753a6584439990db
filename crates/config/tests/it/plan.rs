//! What a reload changes.

use config::{Config, NodeChange, Plan};

fn config(nodes: &str, text: &str) -> Config {
    config::parse(&format!("backends: [{nodes}]\n{text}"), "t").unwrap()
}

#[test]
fn nothing_changes_between_equal_files() {
    let text = "port: 5433\npool_mode: session\nsr_check_password: hush\n";
    let plan = Plan::between(&config("{hostname: a}", text), &config("{hostname: a}", text));
    assert!(plan.is_empty());
    assert_eq!(plan.to_string(), "nothing has changed");
    // A default that is written out is no change either.
    assert!(Plan::between(&config("{hostname: a}", ""), &config("{hostname: a}", "port: 9999\n")).is_empty());
}

#[test]
fn keys_that_need_a_restart_are_refused_by_name() {
    let old = config("{hostname: a}", "default_pool_size: 5\nsr_check_password: one\n");
    let new =
        config("{hostname: a}", "port: 5433\nworkers: 2\nquery_wait_timeout: 1s\nsr_check_password: two\n");
    let plan = Plan::between(&old, &new);
    let names = |changes: &[config::Change]| changes.iter().map(|change| change.key).collect::<Vec<_>>();
    assert_eq!(names(&plan.refused), ["port", "workers"]);
    assert_eq!(names(&plan.changed), ["default_pool_size", "query_wait_timeout", "sr_check_password"]);
    assert_eq!(
        plan.to_string(),
        "default_pool_size: 5 -> 20\n\
         query_wait_timeout: 30s -> 1s\n\
         sr_check_password: ******** -> ********\n\
         port: 9999 -> 5433 needs a restart, the old value is kept\n\
         workers: auto -> 2 needs a restart, the old value is kept"
    );
}

#[test]
fn a_reload_keeps_what_needs_a_restart() {
    let old = config("{hostname: a}", "");
    let mut new = config("{hostname: b}", "port: 5433\nworkers: 2\nquery_wait_timeout: 1s\n");
    new.keep_restart_keys(&old);
    assert_eq!((new.port, new.workers, new.query_wait_timeout.as_secs()), (9999, None, 1));
    assert!(Plan::between(&old, &new).refused.is_empty());
    assert_eq!(Plan::between(&old, &new).changed.len(), 1);
}

#[test]
fn nodes_are_added_removed_moved_and_changed() {
    let old = config("{hostname: a}, {hostname: b}, {hostname: c}, {hostname: d}", "");
    let new = config("{hostname: a, weight: 3}, {hostname: c}, {hostname: e, port: 1}, {hostname: d}", "");
    let plan = Plan::between(&old, &new);
    assert_eq!(
        plan.to_string(),
        "node 1 (b:5432) removed\n\
         node 0 (a:5432) changed\n\
         node 2 (c:5432) becomes node 1\n\
         node 2 (e:1) added"
    );
    assert!(plan.changed.is_empty() && !plan.is_empty());
    assert!(matches!(plan.nodes.first(), Some(NodeChange::Removed { id: cluster::NodeId(1), .. })));
    let password = config("{hostname: a, health_check_password: x}", "");
    let other = config("{hostname: a, health_check_password: y}", "");
    assert_eq!(Plan::between(&password, &other).to_string(), "node 0 (a:5432) changed");
}
