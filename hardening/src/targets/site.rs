//! Files of a site, and what nodes keep.

use stead_engine::nodes::check_site;
use stead_model::node::{Bootstrap, Errand, NodesState, spec_file};
use stead_model::site::{FileKind, Parcel, Site, SiteFile};

use super::{SECRET, Target, check_hidden, chosen, tell, text};

pub(super) const SITE: Target = Target {
    name: "site",
    about: "a whole site: `=== PATH` lines, and the file behind each",
    run: site,
    words: &[
        "=== site.yaml\n",
        "=== secrets.yaml\n",
        "=== keyring.yaml\n",
        "=== hosts/a.yaml\n",
        "=== nodes/a.yaml\n",
        "=== presets/a.yaml\n",
        "=== postures/a.yaml\n",
        "=== specs/a.yaml\n",
        "=== manifests/a.yaml\n",
        "schema_version: 1\n",
        "schema_version: 2\n",
        "nodes:\n",
        "  - name: ",
        "type: vm",
        "type: ct",
        "type: pve",
        "spec: ",
        "preset: ",
        "posture: ",
        "parent: ",
        "execution: {mode: pull}",
        "ip: 10.0.0.1/24",
        "packages: [",
        "users: [",
        "ssh_keys: [",
        "auth: {signing_key: ",
        "networks: {",
        "drivers: {",
        "defaults: {",
        "sandbox: {",
        "settings: {",
    ],
};

pub(super) const SPEC_FILE: Target = Target {
    name: "spec-file",
    about: "a resolved spec, as a server sends it",
    run: spec_file,
    words: &[
        "\"schema_version\":1",
        "\"identity\":{",
        "\"access\":{",
        "\"platform\":{",
        "\"config\":{",
        "\"run\":{",
        "\"digest\":\"",
    ],
};

pub(super) const STATE: Target = Target {
    name: "state",
    about: "state, bootstraps, parcels and errands of nodes",
    run: state,
    words: &[
        "{\"schema\":1,",
        "\"nodes\":{",
        "\"files\":{",
        "\"token\":\"",
        "\"verb\":\"create\"",
        "\"parcel\":{",
        "\"manifest\":null",
    ],
};

fn site(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut files = Vec::new();
    for part in text.split("=== ").skip(1) {
        let Some((path, content)) = part.split_once('\n') else { continue };
        let Some((kind, stem)) = FileKind::of_path(path) else { continue };
        // Whatever is wrong with a file of secrets, nothing of it is shown.
        let veiled = matches!(kind, FileKind::Secrets | FileKind::Keyring);
        let content = if veiled { format!("{content}\n# {SECRET}\n") } else { content.replace(SECRET, "x") };
        let content = Ok(content.into_bytes());
        files.push(SiteFile { kind, stem: stem.to_owned(), name: path.to_owned(), content });
    }
    let site = Site::read(files);
    let told = tell(&check_site(&site));
    check_hidden(&told, "a problem of the site");
    check_hidden(&tell(&site.secrets.diagnostics), "a problem of secrets.yaml");
    check_hidden(&tell(&site.keyring.diagnostics), "a problem of keyring.yaml");
    check_hidden(&format!("{:?} {:?}", site.secrets.value, site.keyring.value), "Debug");
}

fn spec_file(bytes: &[u8]) {
    match spec_file::read("spec", bytes.to_vec()) {
        Ok(spec) => {
            let text = spec_file::to_yaml(&spec);
            let again = spec_file::read("spec.yaml", text.clone().into_bytes());
            let again = again.unwrap_or_else(|problems| panic!("{}\n{text}", problems.render(false)));
            assert_eq!(again, spec, "what was written is read otherwise:\n{text}");
            assert_eq!(again.digest(), spec.digest());
        }
        Err(diagnostics) => {
            assert!(diagnostics.has_errors());
            tell(&diagnostics);
        }
    }
}

fn state(bytes: &[u8]) {
    let Some((choice, bytes)) = chosen(bytes) else { return };
    match choice {
        b's' => {
            let Ok(state) = NodesState::parse(bytes) else { return };
            for name in state.nodes.keys() {
                assert!(state.level_of(name) <= state.nodes.len() + 1);
                assert!(state.root_of(name).is_none_or(|root| state.nodes.contains_key(root)));
            }
            drop(state.fetching());
            let written = state.to_bytes();
            assert_eq!(NodesState::parse(&written).expect("what was written is read").to_bytes(), written);
        }
        b'b' => match Bootstrap::parse(bytes) {
            Ok(bootstrap) => {
                assert_eq!(Bootstrap::parse(bootstrap.to_json().as_bytes()), Ok(bootstrap));
            }
            Err(why) => check_hidden(&format!("{why} {why:?}"), "a bootstrap"),
        },
        b'p' => match Parcel::parse(bytes) {
            Ok(parcel) => {
                assert!(parcel.files.keys().all(|path| !path.contains("..") && !path.starts_with('/')));
                assert_eq!(Parcel::parse(&parcel.to_bytes()).expect("what was written is read"), parcel);
                drop(parcel.to_site());
            }
            Err(why) => check_told_nothing(&why, bytes),
        },
        b'e' => {
            if let Ok(errand) = Errand::parse(bytes) {
                assert_eq!(Errand::parse(&errand.to_bytes()).expect("what was written is read"), errand);
            }
        }
        _ => {}
    }
}

/// Of a parcel only the name of a file that has no place is repeated.
fn check_told_nothing(why: &stead_model::site::parcel::ParcelError, bytes: &[u8]) {
    use stead_model::site::parcel::ParcelError;
    match why {
        ParcelError::Path(path) => assert!(FileKind::of_path(path).is_none()),
        ParcelError::TooLarge | ParcelError::Malformed { .. } | ParcelError::Schema(_) | ParcelError::Key => {
            if bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
                check_hidden(&format!("{why} {why:?}"), "a parcel");
            }
        }
    }
}
