//! What Stead writes into the notes of a machine: whose it is, what it was made from, and how its runs went.
//!
//! ```text
//!   stead b8ca0a97-6f03-56c9-ab24-2f428cb4ff94 lab/harbour/pve/quay      the mark
//!   {"schema":1,"made":true,…}                                           the record; nothing in it is secret
//!   anything else                                                        somebody's notes, which stay
//! ```

use serde::{Deserialize, Serialize};
use stead_model::machine::{MachineExit, MachineSpec};
use stead_model::time::Timestamp;

/// The first word of the mark, and the tag of every machine of ours.
pub(super) const MARK: &str = "stead";
const SCHEMA: u32 = 1;
/// Where machines take logins unless their spec says otherwise.
const SSH_PORT: u16 = 22;

/// What is written of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    schema: u32,
    /// Nothing is missing and nothing is being removed.
    pub(super) made: bool,
    pub(super) spec: MachineSpec,
    pub(super) created_at: Timestamp,
    /// Type and base64 of the key it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host_key: Option<String>,
    /// Where it takes logins; none: at the usual port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ssh_port: Option<u16>,
    /// When it was last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) started_at: Option<Timestamp>,
    /// How the run since then ended, if Stead ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) exit: Option<MachineExit>,
    /// Whatever else the notes say.
    #[serde(skip)]
    notes: String,
}

impl Record {
    /// Returns the record of a machine that is being made from `spec`.
    pub(super) fn new(spec: &MachineSpec, created_at: Timestamp) -> Self {
        // Many may read it.
        let spec = MachineSpec {
            seed: None,
            host_key: None,
            authorized_keys: Vec::new(),
            files: Vec::new(),
            ..spec.clone()
        };
        Self {
            schema: SCHEMA,
            made: false,
            spec,
            created_at,
            host_key: None,
            ssh_port: None,
            started_at: None,
            exit: None,
            notes: String::new(),
        }
    }

    /// Returns the record in a machine's notes; none if they do not carry our mark.
    pub(super) fn parse(description: &str) -> Option<Self> {
        let (mark, rest) = description.split_once('\n')?;
        let (json, notes) = rest.split_once('\n').unwrap_or((rest, ""));
        let record: Self = serde_json::from_str(json).ok()?;
        let is_ours = record.schema == SCHEMA && mark.trim_end() == record.mark();
        is_ours.then(|| Self { notes: notes.trim_end().to_owned(), ..record })
    }

    /// Returns the UUID of the machine whose notes these are, if a mark begins them.
    pub(super) fn uuid(&self) -> String {
        self.spec.owner.uuid()
    }

    /// Returns where the machine takes logins.
    pub(super) fn ssh_port(&self) -> u16 {
        self.ssh_port.unwrap_or(SSH_PORT)
    }

    fn mark(&self) -> String {
        format!("{MARK} {} {}", self.uuid(), self.spec.owner)
    }

    /// Returns the notes.
    pub(super) fn to_description(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        let notes = if self.notes.is_empty() { String::new() } else { format!("\n{}", self.notes) };
        format!("{}\n{json}{notes}\n", self.mark())
    }
}

#[cfg(test)]
mod tests {
    use stead_model::machine::{HostKey, MachineKind, Owner, Seed};

    use super::*;

    #[test]
    fn notes_come_back_with_what_others_wrote_and_hold_no_secret() {
        let spec = MachineSpec {
            seed: Some(Seed { user_data: "hush".to_owned(), ..Seed::default() }),
            host_key: Some(HostKey::new("hush".to_owned())),
            ..MachineSpec::new(Owner::new("lab/harbour/pve", "quay").unwrap(), MachineKind::Vm)
        };
        let record = Record::new(&spec, Timestamp::from_micros(1_000_000));
        let text = record.to_description();
        assert!(text.starts_with(&format!("stead {} lab/harbour/pve/quay\n", spec.owner.uuid())), "{text}");
        assert!(!text.contains("hush"));
        assert_eq!(Record::parse(&text), Some(record));
        let noted = Record::parse(&format!("{text}ask Ann first\n")).unwrap();
        assert!(noted.to_description().ends_with("\nask Ann first\n"), "{}", noted.to_description());
        assert_eq!(noted.spec.hash(), spec.hash());
    }

    #[test]
    fn other_notes_are_not_ours() {
        let spec = MachineSpec::new(Owner::new("lab/harbour/pve", "quay").unwrap(), MachineKind::Vm);
        let text = Record::new(&spec, Timestamp::default()).to_description();
        let (mark, rest) = text.split_once('\n').unwrap();
        let other = Owner::new("lab/harbour/pve", "crane").unwrap();
        for notes in [
            String::new(),
            "my machine".to_owned(),
            mark.to_owned(),
            rest.to_owned(),
            format!("stead {} {other}\n{rest}", other.uuid()),
        ] {
            assert_eq!(Record::parse(&notes), None, "{notes}");
        }
    }
}
