//! Starts what a test would start and waits for the end of its input: for looking at a failure by hand.
//!
//! `cargo run -p pgweir-tests --example rig -- STANDBYS [YAML]`

use std::io::Read;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let standbys = args.next().map_or(Ok(1), |text| text.parse())?;
    let (cluster, weir) = harness::rig(standbys, &args.next().unwrap_or_default())?;
    for node in 0..=standbys {
        println!("n{node}: psql -h 127.0.0.1 -p {} -U postgres bench", cluster.port(node));
    }
    println!(
        "pgweir (pid {}): PGPASSWORD=bench psql -h 127.0.0.1 -p {} -U bench bench",
        weir.pid(),
        weir.port()
    );
    println!("files: {}; metrics on port {}", weir.dir().display(), weir.metrics_port());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
