//! What is wrong with a bundle that was observed: a function of values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use stead_model::plan::Digest;

use super::observe::Observed;
use super::{Finding, Verification, VerifyOptions};
use crate::hashes::HashLine;
use crate::layout::{EVENTS, HASHES, LOCK, PLAN, REPORT, RUN_META, SIGNATURE, VERSIONS, inside, shown};
use crate::roles::{ROLE_META, ROLES, STREAMS, in_role, is_capture};
use crate::signature::{Checked, Signature};

/// How long a pcap file without any packet is.
const PCAP_HEAD: u64 = 24;
/// The kinds of bundles.
const KINDS: [&str; 6] = ["run", "plan", "steps", "nodes", "fleet", "test"];

/// Returns what is wrong with `observed`.
pub(super) fn judge(observed: Observed, options: &VerifyOptions) -> Verification {
    let mut check =
        Check { observed: &observed, options, errors: BTreeMap::new(), warnings: BTreeMap::new() };
    check.entries();
    let meta = check.metadata(Path::new(RUN_META));
    let text =
        |key: &str| meta.as_ref().and_then(|meta| meta.get(key)).and_then(Value::as_str).map(str::to_owned);
    let (run_id, status) = (text("run_id"), text("status"));
    check.identity(meta.as_ref(), run_id.as_deref(), status.as_deref());
    let listed = check.listed();
    let (files_checked, hashes_verified) = check.compare(listed.as_ref());
    check.required(meta.as_ref());
    check.roles();
    check.empty_captures();
    let signature = check.signature();

    let paths = |code: &str, found: &Findings| -> Vec<String> {
        found.keys().filter(|(_, found)| *found == code).map(|(path, _)| path.clone()).collect()
    };
    let (errors, warnings) = (check.errors, check.warnings);
    let mut extra_files = paths("extra-file", &errors);
    extra_files.extend(paths("extra-file", &warnings));
    Verification {
        valid: errors.is_empty(),
        sealed: listed.is_some(),
        run_id,
        status,
        files_checked,
        hashes_verified,
        hash_mismatches: paths("hash-mismatch", &errors),
        missing_files: paths("missing-file", &errors),
        extra_files,
        errors: findings(errors),
        warnings: findings(warnings),
        signature,
    }
}

/// Returns the names of the roles that the phases of a run are of.
fn roles_of_phases(meta: &Value) -> Vec<PathBuf> {
    let phases = meta.get("phases").and_then(Value::as_array);
    let roles = phases.into_iter().flatten().filter_map(|phase| phase.get("role")?.as_str());
    roles.filter_map(|role| inside(role).map(Path::to_owned)).collect()
}

/// Whether a role's metadata says that its output was heard.
fn has_run(meta: &Value) -> bool {
    let text = |key: &str| meta.get(key).and_then(Value::as_str);
    text("started_at").is_some() && text("status") != Some("lost")
}

// By path and code: each path once per code.
type Findings = BTreeMap<(String, &'static str), String>;

fn findings(found: Findings) -> Vec<Finding> {
    found.into_iter().map(|((path, code), message)| Finding { code, path, message }).collect()
}

struct Check<'a> {
    observed: &'a Observed,
    options: &'a VerifyOptions,
    errors: Findings,
    warnings: Findings,
}

impl Check<'_> {
    fn error(&mut self, path: &Path, code: &'static str, message: impl Into<String>) {
        self.errors.entry((shown(path).into_owned(), code)).or_insert_with(|| message.into());
    }

    fn warn(&mut self, path: &Path, code: &'static str, message: impl Into<String>) {
        self.warnings.entry((shown(path).into_owned(), code)).or_insert_with(|| message.into());
    }

    fn is_file(&self, path: &Path) -> bool {
        // Of a damaged archive only what came before the damage is known.
        self.observed.hashes.contains_key(path)
            || self.observed.listing.contents.files.binary_search_by(|(file, _)| by_bytes(file, path)).is_ok()
    }

    /// Notes everything that has no place in a bundle.
    fn entries(&mut self) {
        let observed = self.observed;
        if let Some(reason) = &observed.damage {
            self.error(Path::new(""), "damaged-archive", reason.clone());
        }
        for (path, code, message) in &observed.listing.misplaced {
            self.error(path, code, message.clone());
        }
        for path in &observed.listing.contents.others {
            self.error(path, "not-a-file", "it is neither a file nor a directory");
        }
    }

    /// Returns the object in a metadata file, or notes why there is none. A missing one is noted elsewhere.
    fn metadata(&mut self, path: &Path) -> Option<Value> {
        let observed = self.observed;
        let bytes = match observed.metadata.get(path)? {
            Ok(bytes) => bytes,
            Err(error) => {
                self.error(path, "unreadable", format!("it cannot be read: {error}"));
                return None;
            }
        };
        match serde_json::from_slice::<Value>(bytes) {
            Ok(value @ Value::Object(_)) => return Some(value),
            Ok(_) => self.error(path, "bad-metadata", "it is not a JSON object"),
            Err(error) => self.error(path, "bad-metadata", format!("it is not JSON: {error}")),
        }
        None
    }

    fn identity(&mut self, meta: Option<&Value>, run_id: Option<&str>, status: Option<&str>) {
        let path = Path::new(RUN_META);
        if meta.is_some() {
            let lacking: Vec<_> = [("run_id", run_id), ("status", status)]
                .into_iter()
                .filter(|(_, value)| value.is_none_or(str::is_empty))
                .map(|(key, _)| format!("`{key}`"))
                .collect();
            if !lacking.is_empty() {
                self.error(path, "bad-metadata", format!("it lacks {}", lacking.join(" and ")));
            }
        }
        self.metadata(Path::new(VERSIONS));
        let observed = self.observed;
        if let (Some(run_id), Some(name)) = (run_id, observed.listing.top.as_deref())
            && run_id != name
        {
            let message = format!("the {} is called `{name}`, the run `{run_id}`", observed.holder);
            self.warn(path, "other-name", message);
        }
    }

    /// Returns what `hashes.txt` says, none if there is no seal.
    fn listed(&mut self) -> Option<BTreeMap<PathBuf, Digest>> {
        let name = Path::new(HASHES);
        let observed = self.observed;
        let bytes = match observed.metadata.get(name) {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                self.error(name, "unreadable", format!("it cannot be read: {error}"));
                return None;
            }
            None if observed.damage.is_some() => return None,
            None if observed.listing.contents.others.iter().any(|path| path == name) => {
                self.error(name, "unsealed", "it is not a file, so the bundle has no seal");
                return None;
            }
            None => {
                let message = "the bundle has no seal: its run did not end, or lost its driver";
                self.error(name, "unsealed", message);
                return None;
            }
        };
        let mut listed = BTreeMap::new();
        let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        if lines.is_empty() {
            self.error(name, "empty-hashes", "it lists no file");
            return Some(listed);
        }
        let mut problems = Vec::new();
        for (number, line) in lines.split(|byte| *byte == b'\n').enumerate() {
            match HashLine::parse(line) {
                Err(error) => problems.push(format!("line {}: {error}", number + 1)),
                Ok(line) => {
                    let own = [HASHES, SIGNATURE, LOCK].iter().any(|own| line.path == Path::new(own));
                    if own {
                        problems.push(format!("line {}: {} is never listed", number + 1, shown(&line.path)));
                    } else if listed.insert(line.path.clone(), line.digest).is_some() {
                        problems.push(format!("line {}: {} is listed twice", number + 1, shown(&line.path)));
                    }
                }
            }
        }
        if !problems.is_empty() {
            self.error(name, "bad-hashes", problems.join("; "));
        }
        Some(listed)
    }

    /// Compares what is there with what is listed; returns how many files were looked at and how many fit.
    fn compare(&mut self, listed: Option<&BTreeMap<PathBuf, Digest>>) -> (u64, u64) {
        let observed = self.observed;
        let contents = &observed.listing.contents;
        let Some(listed) = listed else { return (contents.files.len() as u64, 0) };
        let (mut checked, mut verified) = (0, 0);
        for (path, found) in &observed.hashes {
            let Some(expected) = listed.get(path) else {
                self.not_listed(path);
                continue;
            };
            checked += 1;
            match found {
                Ok(found) if found == expected => verified += 1,
                Ok(found) => {
                    self.error(path, "hash-mismatch", format!("it was changed: its hash is {found}"));
                }
                Err(error) => self.error(path, "unreadable", format!("it cannot be read: {error}")),
            }
        }
        if observed.damage.is_none() {
            let others: BTreeSet<&PathBuf> = contents.others.iter().collect();
            for path in listed.keys().filter(|path| !observed.hashes.contains_key(*path)) {
                if !others.contains(path) {
                    self.error(path, "missing-file", "it is listed in hashes.txt and not there");
                }
            }
        }
        (checked, verified)
    }

    fn not_listed(&mut self, path: &Path) {
        if [HASHES, SIGNATURE].iter().any(|own| path == Path::new(own)) {
            return;
        }
        if self.options.allow_extra {
            self.warn(path, "extra-file", "it is not listed");
        } else {
            self.error(path, "extra-file", "it is not listed in hashes.txt");
        }
    }

    fn required(&mut self, meta: Option<&Value>) {
        if self.observed.damage.is_some() {
            return;
        }
        // A bundle of CIPDIP has no schema; without metadata nothing but the metadata can be asked for.
        let schema = meta.and_then(|meta| meta.get("schema")).is_some();
        let kind = meta.and_then(|meta| meta.get("kind")).and_then(Value::as_str);
        let files: &[&str] = match (meta, schema, kind) {
            (None, _, _) => &[RUN_META],
            (Some(_), false, _) => &["manifest.yaml", RUN_META, VERSIONS],
            (Some(_), true, Some("run")) => {
                &[RUN_META, VERSIONS, PLAN, EVENTS, REPORT, "manifest.yaml", "manifest_resolved.yaml"]
            }
            (Some(_), true, _) => &[RUN_META, VERSIONS, PLAN, EVENTS, REPORT],
        };
        let observed = self.observed;
        let is_there = |check: &Self, path: &Path| {
            check.is_file(path) || observed.listing.contents.others.iter().any(|other| other == path)
        };
        for name in files {
            if !is_there(self, Path::new(name)) {
                self.error(Path::new(name), "missing-file", "every bundle of this kind has it");
            }
        }
        if schema && kind == Some("run") {
            let of_roles = observed.listing.contents.files.iter().filter_map(|(path, _)| in_role(path));
            let mut roles: BTreeSet<PathBuf> = of_roles.map(|(role, _)| role.to_owned()).collect();
            roles.extend(meta.into_iter().flat_map(roles_of_phases));
            for directory in roles.into_iter().map(|role| Path::new(ROLES).join(role)) {
                let own = directory.join(ROLE_META);
                if !is_there(self, &own) {
                    self.error(&own, "missing-file", "every role has it");
                }
                let ran = self.metadata(&own).is_some_and(|meta| has_run(&meta));
                for path in STREAMS.map(|name| directory.join(name)).into_iter().filter(|_| ran) {
                    if !is_there(self, &path) {
                        self.error(&path, "missing-file", "every role that ran has it");
                    }
                }
            }
        }
        if schema && !kind.is_some_and(|kind| KINDS.contains(&kind)) {
            let message = format!("its `kind` is not one of {}", KINDS.join(", "));
            self.error(Path::new(RUN_META), "bad-kind", message);
        }
    }

    /// Compares what each role's metadata says of its files with what is there.
    fn roles(&mut self) {
        let observed = self.observed;
        let metas = observed.metadata.keys().filter(|path| path.ends_with(ROLE_META));
        for own in metas {
            let (Some(meta), Some(directory)) = (self.metadata(own), own.parent()) else { continue };
            let list = |key: &str| meta.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
            let captures =
                list("pcap_files").into_iter().map(|file| (file.as_str().map(str::to_owned), None));
            let artifacts = list("artifacts").into_iter().map(|file| {
                let text = |key: &str| file.get(key).and_then(Value::as_str).map(str::to_owned);
                (text("path"), text("sha256"))
            });
            for (file, hash) in captures.chain(artifacts) {
                self.named_by_role(own, directory, file, hash);
            }
        }
    }

    fn named_by_role(&mut self, own: &Path, directory: &Path, file: Option<String>, hash: Option<String>) {
        let role = directory.file_name().unwrap_or_default().to_string_lossy();
        let Some(file) = file.filter(|file| inside(file).is_some()) else {
            self.error(own, "bad-metadata", "it names a file without a path below its role");
            return;
        };
        let path = directory.join(&file);
        if !self.is_file(&path) {
            if self.observed.damage.is_none() {
                self.error(&path, "missing-file", format!("role_meta.json of {role} names it"));
            }
        } else if let (Some(hash), Some(Ok(found))) = (hash, self.observed.hashes.get(&path))
            && hash != found.to_string()
        {
            self.error(&path, "hash-mismatch", format!("role_meta.json of {role} has another hash"));
        }
    }

    fn empty_captures(&mut self) {
        let observed = self.observed;
        for (path, bytes) in &observed.listing.contents.files {
            let without_packets =
                *bytes == 0 || (*bytes == PCAP_HEAD && path.extension() == Some("pcap".as_ref()));
            if without_packets && is_capture(&shown(path)) {
                self.warn(path, "empty-capture", "the capture has no packets");
            }
        }
    }

    fn signature(&mut self) -> Signature {
        let path = Path::new(SIGNATURE);
        let observed = self.observed;
        let asked = self.options.require_signature || self.options.signers.is_some();
        let (Some(Ok(signature)), Some(Ok(hashes))) =
            (observed.metadata.get(path), observed.metadata.get(Path::new(HASHES)))
        else {
            if asked && observed.damage.is_none() {
                self.error(path, "unsigned", "a signature is required and there is none");
            }
            return Signature { present: observed.metadata.contains_key(path), ..Signature::default() };
        };
        let checked = Checked::of(signature, hashes);
        let mut found = checked.to_signature();
        let key = match checked {
            Checked::Invalid(why) => {
                self.error(path, "bad-signature", why);
                return found;
            }
            Checked::By(key) => key,
        };
        if let Some((signers, now)) = &self.options.signers {
            let distrust = signers.distrusts(&key, *now);
            found.trusted = Some(distrust.is_none());
            if let Some(distrust) = distrust {
                let who = found.fingerprint.clone().unwrap_or_default();
                self.error(path, "untrusted-signer", format!("{}: {who}", distrust.sentence()));
            }
        }
        found
    }
}

fn by_bytes(a: &Path, b: &Path) -> std::cmp::Ordering {
    use std::os::unix::ffi::OsStrExt as _;
    a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes())
}
