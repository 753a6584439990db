//! The configuration through its public API: every key, every refusal, side files, plans, generated files.

#[cfg(test)]
mod conflicts;
#[cfg(test)]
mod effective;
#[cfg(test)]
mod files;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod generated;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod refusals;

/// The smallest configuration.
#[cfg(test)]
const NODE: &str = "backends: [{ hostname: db0 }]\n";

/// Parses `text` after the smallest configuration, which is line 1.
#[cfg(test)]
fn parse(text: &str) -> Result<config::Config, String> {
    config::parse(&format!("{NODE}{text}"), "t.yaml").map_err(|errors| errors.to_string())
}
