//! Writes etc/pgweir.yaml and docs/configuration.md from the table of keys.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::write(root.join("etc/pgweir.yaml"), config::sample())?;
    std::fs::write(root.join("docs/configuration.md"), config::reference())
}
