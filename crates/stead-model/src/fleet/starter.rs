//! The files of a new fleet: a small site that is kept as its Git repository says.

use crate::schema::{FLEET_SCHEMAS, SITE_SCHEMAS, fleet_schema, site_schema};
use crate::site::FileKind;
use crate::starter::StarterFile;

/// Returns the files of a new fleet, sorted.
pub fn starter() -> Vec<StarterFile> {
    let texts = [
        (
            FileKind::Site.place().to_owned(),
            "# yaml-language-server: $schema=defs/site.schema.json\n# What holds where no other file says something else.\nname: fleet\ndefaults: {timezone: UTC, posture: local}\n",
        ),
        (
            "fleet.yaml".to_owned(),
            "\
# yaml-language-server: $schema=defs/fleet.schema.json
# What is not about single machines: where they may run, how they are replaced.
api_version: v1
defaults:
  # One at a time, and the next one once this one has been ready for a second.
  rollout: {maxUnavailable: 1, minReadySeconds: 1}
  stopSeconds: 5
vms:
  web: {spread: {maxPerWorker: 2}}
",
        ),
        (
            FileKind::Manifest.path_of("fleet"),
            "\
# yaml-language-server: $schema=../defs/manifest.schema.json
# Change a count or a spec, `git commit`, and watch; `git revert HEAD` goes back.
schema_version: 2
name: fleet
nodes:
  - {name: web, type: vm, spec: web, preset: tiny, count: 2}
  - {name: cache, type: vm, spec: base, preset: tiny}
",
        ),
        (
            FileKind::Spec.path_of("base"),
            "# yaml-language-server: $schema=../defs/spec.schema.json\nschema_version: 1\nplatform:\n  packages: [curl]\n",
        ),
        (
            FileKind::Spec.path_of("web"),
            "# yaml-language-server: $schema=../defs/spec.schema.json\nschema_version: 1\nplatform:\n  packages: [nginx]\n",
        ),
        (
            FileKind::Preset.path_of("tiny"),
            "# yaml-language-server: $schema=../defs/preset.schema.json\ncores: 1\nmemory: 512  # MB\ndisk: 1  # GB\n",
        ),
        (
            FileKind::Posture.path_of("local"),
            "# yaml-language-server: $schema=../defs/posture.schema.json\nssh: {permit_root_login: prohibit-password, password_authentication: \"no\"}\nsudo: {nopasswd: true}\nfail2ban: {enabled: false}\n",
        ),
        (".gitignore".to_owned(), "/secrets.yaml\n/keyring.yaml\n/.stead/\n"),
    ];
    let mut files: Vec<StarterFile> =
        texts.into_iter().map(|(path, content)| StarterFile::open(path, content)).collect();
    for (word, kind) in SITE_SCHEMAS {
        files.push(StarterFile::schema(word, &site_schema(kind)));
    }
    for (word, kind) in FLEET_SCHEMAS {
        files.push(StarterFile::schema(word, &fleet_schema(kind)));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::{Diagnostics, Source};
    use crate::fleet::FleetFile;

    #[test]
    fn a_new_fleet_is_right() {
        let files = starter();
        let text = |path: &str| files.iter().find(|file| file.path == path).unwrap().content.clone();
        let source = Source { name: "fleet.yaml".into(), text: text("fleet.yaml").into() };
        let mut diagnostics = Diagnostics::default();
        let fleet = FleetFile::read(&source, &mut diagnostics);
        assert_eq!(diagnostics.to_string(), "");
        assert_eq!(fleet.vms.len(), 1);
        let schemas = FLEET_SCHEMAS.map(|(word, _)| text(&format!("defs/{word}.schema.json")));
        assert!(schemas.iter().all(|schema| schema.contains("\"$schema\"")));
    }
}
