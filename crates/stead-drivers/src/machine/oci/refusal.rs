//! Why a keeper could not start its container, told to the driver that waits for it.

use std::io;

use serde::{Deserialize, Serialize};
use stead_runner::machine::MachineError;

use crate::machine::home::{Home, read, write};

/// The file in the machine's directory.
pub(super) const FILE: &str = "refusal.json";

/// What went wrong, by what may help against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "text")]
pub(super) enum Refusal {
    Unsupported(String),
    Invalid(String),
    Unavailable(String),
    Timeout(String),
    Failed(String),
}

impl Refusal {
    /// Keeps why the container could not be started.
    pub(super) fn tell(home: &Home, error: &MachineError) -> io::Result<()> {
        write(&home.file(FILE), &Self::from(error))
    }

    /// Returns why the container could not be started, if its keeper said so.
    pub(super) fn told(home: &Home) -> Option<MachineError> {
        let refusal: Self = read(&home.file(FILE))?;
        Some(match refusal {
            Self::Failed(text) => MachineError::Failed {
                what: format!("the container died at once: {text}"),
                last_lines: home.last_lines(),
            },
            other @ (Self::Unsupported(_) | Self::Invalid(_) | Self::Unavailable(_) | Self::Timeout(_)) => {
                other.into()
            }
        })
    }
}

impl From<Refusal> for MachineError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsupported(text) => Self::Unsupported(text),
            Refusal::Invalid(text) => Self::Invalid(text),
            Refusal::Unavailable(text) => Self::Unavailable(text),
            Refusal::Timeout(text) => Self::Timeout(text),
            Refusal::Failed(text) => Self::failed(text),
        }
    }
}

impl From<&MachineError> for Refusal {
    fn from(error: &MachineError) -> Self {
        let text = error.to_string();
        match error {
            MachineError::Unsupported(_) => Self::Unsupported(text),
            MachineError::NotFound(_)
            | MachineError::Foreign { .. }
            | MachineError::Conflict { .. }
            | MachineError::Invalid(_) => Self::Invalid(text),
            MachineError::Unavailable(_) => Self::Unavailable(text),
            MachineError::Timeout(_) => Self::Timeout(text),
            // Its last lines are on the console, with those of the machine.
            MachineError::Failed { what, .. } => Self::Failed(what.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::oci::KIND;

    #[test]
    fn a_refusal_keeps_its_class_and_its_text() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::at(&KIND, place.path().to_owned());
        assert_eq!(Refusal::told(&home), None);
        for error in [
            MachineError::Invalid("no such bridge".to_owned()),
            MachineError::Timeout("create did not end".to_owned()),
            MachineError::Unavailable("no ip".to_owned()),
            MachineError::Unsupported("no IPv6".to_owned()),
        ] {
            Refusal::tell(&home, &error).unwrap();
            assert_eq!(Refusal::told(&home), Some(error));
        }
        std::fs::write(home.console(), "what it said\n").unwrap();
        Refusal::tell(&home, &MachineError::failed("create failed")).unwrap();
        let told = Refusal::told(&home).unwrap().to_string();
        assert!(told.contains("create failed") && told.contains("what it said"), "{told}");
    }
}
