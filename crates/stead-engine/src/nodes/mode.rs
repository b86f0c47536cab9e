//! The mode rule: by whom each phase of a node is done.

use stead_model::site::Manifest;
use stead_model::site::manifest::{Mode, NodeExecution};

/// The modes of a node's phases. Create is always push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Of config.
    pub config: Mode,
    /// Of run.
    pub run: Mode,
    /// Of destroy.
    pub destroy: Mode,
}

impl Modes {
    /// Returns how the agent of a node with these modes works; none: it needs none.
    pub fn agent(self) -> Option<Mode> {
        [self.config, self.run].into_iter().find(|mode| *mode != Mode::Push)
    }
}

/// Returns the modes of a node, given `--mode`. The parent's mode does not matter.
pub fn modes(flag: Option<Mode>, manifest: &Manifest, node: &NodeExecution) -> Modes {
    let config = flag.or(node.config).or(node.mode).unwrap_or(manifest.default_mode);
    Modes { config, run: node.run.unwrap_or(config), destroy: node.destroy.unwrap_or(Mode::Push) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 12: every row of the rule; nothing said anywhere is push.
    #[test]
    fn the_first_that_says_something_decides() {
        let nobody = Manifest::default();
        let pulling = Manifest { default_mode: Mode::Pull, ..Manifest::default() };
        let silent = NodeExecution::default();
        let own = NodeExecution { mode: Some(Mode::Hybrid), ..silent };
        let phased = NodeExecution {
            config: Some(Mode::Push),
            run: Some(Mode::Pull),
            destroy: Some(Mode::Pull),
            ..own
        };
        let config = |flag, manifest, node| modes(flag, manifest, node).config;
        assert_eq!(config(None, &nobody, &silent), Mode::Push);
        assert_eq!(config(None, &pulling, &silent), Mode::Pull);
        assert_eq!(config(None, &pulling, &own), Mode::Hybrid);
        assert_eq!(config(None, &pulling, &phased), Mode::Push);
        assert_eq!(config(Some(Mode::Pull), &nobody, &phased), Mode::Pull);
        assert_eq!(
            modes(None, &pulling, &own),
            Modes { config: Mode::Hybrid, run: Mode::Hybrid, destroy: Mode::Push }
        );
        assert_eq!(
            modes(None, &pulling, &phased),
            Modes { config: Mode::Push, run: Mode::Pull, destroy: Mode::Pull }
        );
    }
}
