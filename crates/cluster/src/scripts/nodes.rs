//! Nodes that are configured anew, and how far they are.

use super::*;

#[test]
fn a_new_weight_changes_nothing_else() {
    let mut script = Script::running();
    let before = script.core.topology().clone();
    let mut nodes = ["db0", "db1", "db2"].map(spec).to_vec();
    nodes[1].weight = 3.0;
    script.event(Event::NodesChanged { nodes, settings: settings() });
    let after = script.core.topology().clone();
    assert_eq!(after.nodes[1].weight, 3.0);
    assert_eq!(after.nodes[1].changed_epoch, before.nodes[1].changed_epoch);
    assert_eq!(after.primary, Some(NodeId(0)));
    assert!(after.epoch > before.epoch);
    assert_eq!(script.actions, [Action::Record(Record::Reconfigured { nodes: 3 }), Action::Publish(after)]);
}

#[test]
fn nodes_that_move_in_the_list_keep_what_is_known_and_are_fenced() {
    let mut script = Script::running();
    let late = at(script.now);
    let before = script.core.topology().epoch;
    script.event(Event::NodesChanged { nodes: ["db1", "db0"].map(spec).to_vec(), settings: settings() });
    assert_eq!(script.state(0), UP_STANDBY);
    assert_eq!(script.state(1), UP_PRIMARY);
    assert!(script.core.topology().nodes.iter().all(|node| node.changed_epoch > before));
    // A report and an observation from before are about other nodes.
    script.event(Event::CheckOk { node: NodeId(0), started: late, facts: primary(1) });
    script.event(Event::Observed(Observation::BackendLost { node: NodeId(1), epoch: before }));
    assert_eq!(script.actions, []);
    assert_eq!(script.core.topology().primary, Some(NodeId(1)));
}

#[test]
fn lag_is_measured_and_does_not_raise_the_epoch() {
    let mut script = Script::running();
    assert_eq!(script.core.topology().nodes[1].replay_lag, Some(100));
    let epoch = script.core.topology().epoch;
    script.ok(1, Facts { lsn: Some(Lsn(1010)), ..standby() });
    assert_eq!(script.core.topology().nodes[1].replay_lag, Some(0));
    assert_eq!(script.core.topology().epoch, epoch);
    assert!(matches!(script.actions[..], [Action::Publish(_)]));
}

#[test]
fn positions_are_read_and_written_as_postgresql_does() {
    let lsn = Lsn::parse("16/B374D848").unwrap();
    assert_eq!(lsn, Lsn(0x16_B374_D848));
    assert_eq!(lsn.to_string(), "16/B374D848");
    for (inserted, written) in [(0x900_0028, 0x900_0000), (0x900_2018, 0x900_2000), (0x900_2029, 0x900_2029)]
    {
        assert_eq!(Lsn(inserted).before_page_header(), Lsn(written));
    }
    for bad in ["", "/", "16", "1/2/3", "1FFFFFFFF/0", "x/0"] {
        assert_eq!(Lsn::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_primary_that_leaves_the_list_is_a_loss() {
    let mut script = Script::running();
    let nodes = ["db1", "db2"].map(spec).to_vec();
    script.event(Event::NodesChanged { nodes, settings: settings() });
    assert_eq!(script.core.topology().primary, None);
    assert_eq!(script.core.topology().primary_lost, Some(at(script.now)), "writes wait");
    let nodes = ["db0", "db1", "db2"].map(spec).to_vec();
    script.event(Event::NodesChanged { nodes, settings: settings() }).ok(0, primary(1));
    assert_eq!(script.state(0), UP_PRIMARY);
    assert_eq!(script.core.topology().primary_lost, None);
}

#[test]
fn a_name_that_moves_makes_another_server_of_the_node() {
    let mut script = Script::running();
    let before = script.core.topology().clone();
    script.event(Event::Moved { node: NodeId(1) });
    let after = script.core.topology().clone();
    assert!(after.nodes[1].changed_epoch > before.nodes[1].changed_epoch);
    assert_eq!(after.nodes[0].changed_epoch, before.nodes[0].changed_epoch);
    assert_eq!((script.state(1), after.primary), (UP_STANDBY, Some(NodeId(0))));
    assert_eq!(script.actions, [Action::Publish(after)]);
    script.event(Event::Moved { node: NodeId(9) });
    assert_eq!(script.actions, []);
}
