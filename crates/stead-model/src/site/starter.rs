//! The files of a new site, by who it is for. Who writes them brings the signing key: nothing here is random.

use super::FileKind;
use crate::schema::{SITE_SCHEMAS, site_schema};
use crate::starter::{Access, StarterFile};
use crate::token::SigningKey;

/// Who a site is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persona {
    /// Somebody who is present and wants to see it now: push.
    Homelab,
    /// Remote sites that recover by themselves: pull.
    Managed,
    /// An audited trigger, autonomous execution: hybrid.
    Enterprise,
}

impl Persona {
    /// Whether nodes of such a site present tokens.
    pub const fn needs_key(self) -> bool {
        match self {
            Self::Homelab => false,
            Self::Managed | Self::Enterprise => true,
        }
    }
}

const PRESETS: [(&str, u32, u32, u32); 5] = [
    ("vm-xsmall", 1, 1024, 8),
    ("vm-small", 2, 2048, 10),
    ("vm-medium", 2, 4096, 20),
    ("vm-large", 4, 8192, 40),
    ("vm-xlarge", 8, 16384, 80),
];

const POSTURES: [(&str, &str); 4] = [
    (
        "dev",
        "# Convenient, not safe: for machines nobody else reaches.
ssh: {permit_root_login: \"yes\", password_authentication: \"yes\"}
sudo: {nopasswd: true}
fail2ban: {enabled: false}
packages: [net-tools, strace, tcpdump]
",
    ),
    (
        "local",
        "# Keys only, sudo without a password: for a lab behind a firewall.
ssh: {permit_root_login: prohibit-password, password_authentication: \"no\"}
sudo: {nopasswd: true}
fail2ban: {enabled: false}
",
    ),
    (
        "stage",
        "# As production, with tools to look inside.
ssh: {permit_root_login: prohibit-password, password_authentication: \"no\"}
sudo: {nopasswd: false}
fail2ban: {enabled: true}
packages: [net-tools, strace]
",
    ),
    (
        "prod",
        "# No root, no passwords.
ssh: {permit_root_login: \"no\", password_authentication: \"no\"}
sudo: {nopasswd: false}
fail2ban: {enabled: true}
",
    ),
];

/// Returns the files of a new site. `key` signs its tokens, if the persona needs one.
pub fn starter(persona: Persona, key: Option<&SigningKey>) -> Vec<StarterFile> {
    let (mode, posture, run) = match persona {
        Persona::Homelab => ("push", "dev", ""),
        Persona::Managed => ("pull", "stage", "run: {trigger: schedule, interval: 15m}\n"),
        Persona::Enterprise => ("hybrid", "prod", ""),
    };
    let mut files = vec![
        open(
            FileKind::Site.place(),
            format!(
                "# What holds where no other file says something else.
name: site
defaults:
  timezone: UTC
  posture: {posture}
"
            ),
        ),
        StarterFile { access: Access::Secret, ..open(FileKind::Secrets.place(), secrets(key)) },
        open(
            &FileKind::Spec.path_of("base"),
            format!(
                "# What a node becomes. `ssh_keys` left out: every key of secrets.yaml.
schema_version: 1
access:
  posture: {posture}
  users:
    - {{name: ops, sudo: true}}
platform:
  packages: [curl, htop]
{run}"
            ),
        ),
        open(
            &FileKind::Manifest.path_of("first"),
            format!(
                "# Two nodes beside each other: stead create -M first -H local
schema_version: 2
name: first
pattern: flat
execution: {{default_mode: {mode}}}
nodes:
  - {{name: one, type: vm, spec: base, preset: vm-xsmall}}
  - {{name: two, type: vm, spec: base, preset: vm-xsmall}}
"
            ),
        ),
        StarterFile::open(".gitignore", "/secrets.yaml\n/keyring.yaml\n/.stead/\n"),
    ];
    for (name, cores, memory, disk) in PRESETS {
        let content = format!("cores: {cores}\nmemory: {memory}  # MB\ndisk: {disk}  # GB\n");
        files.push(open(&FileKind::Preset.path_of(name), content));
    }
    for (name, content) in POSTURES {
        files.push(open(&FileKind::Posture.path_of(name), content.to_owned()));
    }
    for (word, kind) in SITE_SCHEMAS {
        files.push(StarterFile::schema(word, &site_schema(kind)));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Returns a file of the site whose first line names its schema to editors.
fn open(path: &str, content: String) -> StarterFile {
    let up = "../".repeat(path.matches('/').count());
    let kind = FileKind::of_path(path).map(|(kind, _)| kind);
    let word = SITE_SCHEMAS.into_iter().find(|(_, of)| kind == Some(*of)).map_or("site", |(word, _)| word);
    StarterFile::open(path, format!("# yaml-language-server: $schema={up}defs/{word}.schema.json\n{content}"))
}

fn secrets(key: Option<&SigningKey>) -> String {
    let auth = key.map_or_else(String::new, |key| {
        format!("# Signs the tokens of nodes.\nauth:\n  signing_key: \"{}\"\n", key.to_hex())
    });
    format!(
        "# Keep this file from others (mode 0600), and out of Git.
# Public keys by id: `ann: ssh-ed25519 AAAA… ann@desk`
ssh_keys: {{}}
{auth}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::manifest::Mode;
    use crate::site::{Site, SiteFile, resolve};

    /// Returns the files of a new site that are read.
    fn site_files(persona: Persona) -> Vec<SiteFile> {
        let key = SigningKey::from_bytes([7; 32]);
        let files = starter(persona, persona.needs_key().then_some(&key));
        let kind_of = |path: &str| {
            FileKind::FOLDERS.into_iter().find(|kind| path.starts_with(&format!("{}/", kind.place()))).or(
                match path {
                    "site.yaml" => Some(FileKind::Site),
                    "secrets.yaml" => Some(FileKind::Secrets),
                    _ => None,
                },
            )
        };
        let read = files.iter().filter_map(|file| {
            let stem = file.path.rsplit('/').next()?.strip_suffix(".yaml")?.to_owned();
            let content = Ok(file.content.clone().into_bytes());
            Some(SiteFile { kind: kind_of(&file.path)?, stem, name: file.path.clone(), content })
        });
        read.collect()
    }

    fn read(persona: Persona) -> Site {
        Site::read(site_files(persona))
    }

    /// Every persona's site is without a problem, and fits the schemas it brings.
    #[test]
    fn new_sites_are_right() {
        for persona in [Persona::Homelab, Persona::Managed, Persona::Enterprise] {
            let read = site_files(persona);
            assert_eq!(read.len(), 13);
            for file in &read {
                let schema = jsonschema::validator_for(&site_schema(file.kind)).unwrap();
                let text = String::from_utf8(file.content.clone().unwrap()).unwrap();
                let source = crate::diagnostic::Source { name: "x".into(), text: text.into() };
                let tree =
                    crate::yaml::read(&source, crate::yaml::Codes::NODE, &mut crate::Diagnostics::default());
                assert!(schema.is_valid(&tree.unwrap().root().to_json()), "{}", file.name);
            }
            let site = Site::read(read);
            let entries = [&site.settings.diagnostics, &site.secrets.diagnostics];
            assert!(entries.into_iter().all(|found| found.0.is_empty()));
            assert!(site.specs.values().all(|entry| entry.diagnostics.0.is_empty()));
            assert!(site.manifests.values().all(|entry| entry.diagnostics.0.is_empty()));
            assert_eq!(site.secrets.value.signing_key.is_some(), persona.needs_key());
        }
    }

    /// Section 2: the sizes and postures that a new site brings are those of the contract, file by file.
    #[test]
    fn sizes_and_postures_are_as_promised() {
        let site = read(Persona::Homelab);
        let sizes: Vec<(&str, [u32; 3])> = site
            .presets
            .iter()
            .map(|(name, preset)| {
                let preset = &preset.value;
                (name.as_str(), [preset.cores, preset.memory, preset.disk])
            })
            .collect();
        assert_eq!(
            sizes,
            [
                ("vm-large", [4, 8192, 40]),
                ("vm-medium", [2, 4096, 20]),
                ("vm-small", [2, 2048, 10]),
                ("vm-xlarge", [8, 16384, 80]),
                ("vm-xsmall", [1, 1024, 8]),
            ]
        );
        let postures = site.postures.iter().map(|(name, posture)| {
            let (posture, packages) = (&posture.value.security, posture.value.packages.join(" "));
            let ssh = serde_json::to_value(&posture.ssh).unwrap();
            assert_eq!(ssh["port"], 22);
            let (root, passwords) = (&ssh["permit_root_login"], &ssh["password_authentication"]);
            let (nopasswd, fail2ban) = (posture.sudo.nopasswd, posture.fail2ban.enabled);
            format!("{} {root} {passwords} {nopasswd} {fail2ban} {packages}", name.as_str()).replace('"', "")
        });
        assert_eq!(
            postures.collect::<Vec<_>>(),
            [
                "dev yes yes true false net-tools strace tcpdump",
                "local prohibit-password no true false ",
                "prod no no false true ",
                "stage prohibit-password no false true net-tools strace",
            ]
        );
    }

    /// Section 1: what each persona gets that the others do not.
    #[test]
    fn each_persona_has_its_mode_posture_and_trigger() {
        for (persona, mode, posture, scheduled) in [
            (Persona::Homelab, Mode::Push, "dev", false),
            (Persona::Managed, Mode::Pull, "stage", true),
            (Persona::Enterprise, Mode::Hybrid, "prod", false),
        ] {
            let site = read(persona);
            assert_eq!(site.manifests["first"].value.default_mode, mode);
            let node = crate::NodeName::parse("one").unwrap();
            let resolved = resolve(&site, &crate::SiteKey::parse("base").unwrap(), &node).unwrap();
            assert_eq!(resolved.access.posture.as_str(), posture, "{persona:?}");
            let run = serde_json::to_value(resolved.run).unwrap();
            assert_eq!(run["trigger"], if scheduled { "schedule" } else { "manual" }, "{persona:?}");
        }
    }
}
