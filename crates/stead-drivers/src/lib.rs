//! Stead's drivers: the operations, each implemented once, for the machine it runs on.
//!
//! [`Drivers::standard`] is the registry of them all. Every module here acts and reports; none decides order or retries.

mod access;
mod account;
pub mod agent;
mod archive;
mod assert;
mod certificate;
mod command;
pub mod config;
mod container;
mod disk;
pub mod doctor;
pub mod errand;
pub mod examine;
pub mod executor;
pub mod facts;
mod file;
mod git;
mod http;
mod identity;
pub mod intent;
mod kernel;
pub mod machine;
mod network;
pub mod node_agent;
pub mod nodes;
mod package;
mod program_hash;
mod ranges;
mod reboot;
pub mod repositories;
pub mod roles;
pub mod run;
mod schedule;
pub mod server_client;
mod service;
mod setup;
pub mod site;
pub mod steps;
mod storage;
pub mod supervisor;
mod system;
mod systemd_unit;
mod together;
pub mod transport;
mod wait;
pub mod web;

pub use http::download;
pub use network::watch::{
    confirm as confirm_network_changes, leave_to_driver as leave_network_changes_to_driver,
};

use stead_runner::operation::Registry;

/// The operations of this crate, as programs name them.
#[derive(Clone, Copy, Debug)]
pub struct Drivers;

impl Drivers {
    /// Returns every operation there is, for the machine that runs the plan.
    pub fn standard() -> Registry {
        Self::all(reboot::Reboot::Refused, None)
    }

    /// Returns every operation there is, with those of steps able to act: they get their values from `surroundings`.
    pub fn with_steps(surroundings: steps::StepSurroundings) -> Registry {
        Self::all(reboot::Reboot::Refused, Some(surroundings))
    }

    /// Returns the operations of a run of roles, which act with `surroundings`.
    pub fn with_run(surroundings: &std::sync::Arc<run::RunSurroundings>) -> Registry {
        let mut registry = Registry::new();
        run::add_to(&mut registry, surroundings);
        registry
    }

    /// Returns the operations of a run of nodes, which act with `surroundings`.
    pub fn with_nodes(surroundings: &std::sync::Arc<nodes::NodesSurroundings>) -> Registry {
        let mut registry = Registry::new();
        nodes::add_to(&mut registry, surroundings);
        registry
    }

    /// Returns every operation there is, for the executor of a target: another machine than the one that runs the
    /// plan, so it may be restarted.
    pub fn on_target() -> Registry {
        Self::all(reboot::Reboot::Allowed, None)
    }

    fn all(reboot: reboot::Reboot, surroundings: Option<steps::StepSurroundings>) -> Registry {
        let mut registry = Registry::new();
        registry.add_action(command::Exec);
        registry.add_action(command::Shell);
        file::add_to(&mut registry);
        access::add_to(&mut registry);
        account::add_to(&mut registry);
        package::add_to(&mut registry);
        service::add_to(&mut registry);
        systemd_unit::add_to(&mut registry);
        container::add_to(&mut registry);
        registry.add_action(reboot);
        registry.add_operation(archive::Unpacked);
        registry.add_action(assert::Assert);
        certificate::add_to(&mut registry);
        registry.add_action(facts::GatherFacts);
        registry.add_operation(git::Checkout);
        registry.add_action(http::HttpRequest);
        identity::add_to(&mut registry);
        kernel::add_to(&mut registry);
        network::add_to(&mut registry);
        schedule::add_to(&mut registry);
        setup::add_to(&mut registry);
        steps::add_to(&mut registry, surroundings);
        storage::add_to(&mut registry);
        registry.add_action(wait::WaitPort);
        registry.add_action(wait::WaitHttp);
        registry.add_action(wait::WaitFile);
        registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stead_model::operation::Needed;

    #[test]
    fn descriptors_are_complete() {
        let registry = Drivers::standard();
        for descriptor in registry.descriptors() {
            let name = descriptor.name;
            assert!(descriptor.summary.ends_with('.'), "{name}: summary");
            let names: BTreeSet<&str> = descriptor.params.iter().map(|param| param.name).collect();
            assert_eq!(names.len(), descriptor.params.len(), "{name}: a parameter twice");
            for param in descriptor.params {
                assert!(param.doc.ends_with('.'), "{name}.{}: doc", param.name);
            }
            for group in descriptor.exclusive.iter().chain(descriptor.one_of) {
                assert!(group.iter().all(|param| names.contains(param)), "{name}: {group:?}");
            }
            for (group, needed) in descriptor.needs() {
                let is_known = match needed {
                    Needed::UnlessAbsent => names.contains("state"),
                    Needed::With(other) => names.contains(other),
                };
                assert!(is_known, "{name}: {group:?} {needed:?}");
            }
            assert!(descriptor.result.iter().all(|(_, what)| what.ends_with('.')), "{name}: result");
        }
    }

    /// Section 11 of plans: what is spelled out as a default has to be one.
    #[test]
    fn declared_defaults_fit_their_parameters_and_their_documentation() {
        let registry = Drivers::standard();
        let mut problems = Vec::new();
        for descriptor in registry.descriptors() {
            for param in descriptor.params {
                let name = format!("{}.{}", descriptor.name, param.name);
                let Some(default) = param.default else {
                    let said = ["default: true", "default: false", "default: none", "(default)"];
                    if said.iter().any(|said| param.doc.contains(said)) {
                        problems.push(format!(
                            "{name}: its documentation names a default, `.default(…)` does not"
                        ));
                    }
                    continue;
                };
                let value = default.to_json();
                if param.required {
                    problems.push(format!("{name}: required, and yet has a default"));
                }
                if let Some(refused) = param.kind.refuse(&value) {
                    problems.push(format!("{name}: its own default is refused: {refused}"));
                }
                if !param.is_default(&value) {
                    problems.push(format!("{name}: its default is not taken for it"));
                }
                if !param.doc.contains("default") {
                    problems.push(format!("{name}: its documentation does not name the default"));
                }
                if descriptor.params_schema()["properties"][param.name]["default"] != value {
                    problems.push(format!("{name}: the schema does not show the default"));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn secrets_are_allowed_where_content_goes_and_not_in_argv() {
        let registry = Drivers::standard();
        let secret = |operation: &str, name: &str| {
            registry.get(operation).and_then(|entry| entry.descriptor().param(name)).map(|param| param.secret)
        };
        for (operation, name) in
            [("command.exec", "env"), ("command.shell", "stdin"), ("file.present", "content")]
        {
            assert_eq!(secret(operation, name), Some(true), "{operation}.{name}");
        }
        for (operation, name) in
            [("command.exec", "args"), ("command.shell", "script"), ("command.exec", "unless")]
        {
            assert_eq!(secret(operation, name), Some(false), "{operation}.{name}");
        }
    }
}
