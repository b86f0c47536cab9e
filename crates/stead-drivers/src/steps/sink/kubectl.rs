//! A Secret of a cluster, through `kubectl`.
//!
//! Values travel on standard input and output alone: not in arguments, not in the program's environment, not in a
//! temporary file. What `get` prints is never logged.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde::Deserialize;
use stead_model::base64;
use stead_model::catalogue::Document;
use stead_model::event::Stream;
use stead_runner::operation::{OpContext, OpError};
use stead_runner::redact::Secret;
use zeroize::Zeroizing;

use super::{Held, Sink, manifest};
use crate::command::process::{self, Capture, Start};
use crate::command::program;
use crate::steps::environment::Grants;
use crate::steps::{InputsDocument, StepSurroundings};

/// How much of what the program says on standard error an error holds.
const MOST_SAID: usize = 4 << 10;

/// A document in a cluster.
pub(super) struct KubectlSink<'a> {
    pub(super) document: &'a InputsDocument,
    pub(super) surroundings: &'a StepSurroundings,
    pub(super) command: &'a str,
    pub(super) context: Option<&'a str>,
    pub(super) namespace: &'a str,
    pub(super) secret: &'a Document,
}

/// What is compared of a Secret.
#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[async_trait::async_trait]
impl Sink for KubectlSink<'_> {
    fn cannot_look(&self) -> Option<&'static str> {
        Some("a dry run starts no program, so the cluster is not asked")
    }

    async fn look(&self, cx: &OpContext) -> Result<Option<Held>, OpError> {
        let name = &self.secret.name;
        let said = self.run(cx, &["get", "secret", name, "--ignore-not-found", "-o", "json"], None).await?;
        if said.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let found: Found = serde_json::from_slice(&said).map_err(|error| {
            // Not its text: that may be a value.
            let place = format!("line {}, column {}", error.line(), error.column());
            OpError::operation(format!(
                "`{} get` answered with something that is no Secret ({place})",
                self.command
            ))
        })?;
        let data = found.data.unwrap_or_default();
        let wanted = self.document.keys.iter();
        let wanted: BTreeMap<&String, String> =
            wanted.map(|(key, value)| (key, base64::encode(value.expose()))).collect();
        let same_data =
            data.len() == wanted.len() && wanted.iter().all(|(key, value)| data.get(*key) == Some(value));
        let labels = found.metadata.labels.unwrap_or_default();
        let annotations = found.metadata.annotations.unwrap_or_default();
        let (mark, marked) = manifest::MANAGED_LABEL;
        let keys =
            data.into_iter().filter_map(|(key, value)| Some((key, Secret::new(base64::decode(&value)?))));
        Ok(Some(Held {
            what: format!("secret {name} in namespace {}", self.namespace),
            managed: labels.get(mark).is_some_and(|value| value == marked),
            as_wanted: found.kind == "Opaque"
                && same_data
                && holds(&labels, &manifest::labels(self.secret))
                && holds(&annotations, &self.secret.annotations),
            keys: keys.collect(),
        }))
    }

    async fn write(&self, cx: &OpContext) -> Result<(), OpError> {
        let manifest = manifest::to_manifest(&self.document.keys, Some(self.namespace), self.secret);
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--validate=false",
            "--field-manager=stead",
            "-f",
            "-",
        ];
        let said = self.run(cx, &apply, Some(manifest.as_bytes())).await?;
        cx.output.write(Stream::Stdout, &said);
        Ok(())
    }

    async fn remove(&self, cx: &OpContext) -> Result<(), OpError> {
        let delete = ["delete", "secret", &self.secret.name, "--ignore-not-found", "--wait=false"];
        let said = self.run(cx, &delete, None).await?;
        cx.output.write(Stream::Stdout, &said);
        Ok(())
    }
}

/// Whether `found` has every pair of `declared`.
fn holds(found: &BTreeMap<String, String>, declared: &BTreeMap<String, String>) -> bool {
    declared.iter().all(|(name, value)| found.get(name) == Some(value))
}

impl KubectlSink<'_> {
    /// Runs the program and returns what it said on standard output; its standard error is the attempt's.
    async fn run(
        &self,
        cx: &OpContext,
        args: &[&str],
        stdin: Option<&[u8]>,
    ) -> Result<Zeroizing<Vec<u8>>, OpError> {
        let environment = self.surroundings.environment(cx, &Grants::none());
        let path = environment.set.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"));
        let root = &self.surroundings.root;
        let program = program::find(self.command, root, path.as_deref())
            .map_err(|missing| OpError::operation(missing.message))?;
        let mut argv: Vec<OsString> = Vec::new();
        if let Some(context) = self.context {
            argv.extend(["--context".into(), context.into()]);
        }
        argv.extend(["-n".into(), self.namespace.into()]);
        argv.extend(args.iter().map(OsString::from));
        let start = Start {
            program,
            name: self.command.to_owned(),
            args: argv,
            cwd: root.clone(),
            hidden_env: environment.hidden,
            env: environment.set,
            stdin: stdin.map(<[u8]>::to_vec),
            capture: Capture::Stream,
        };
        let (mut stdout, mut stderr) = (Zeroizing::new(Vec::new()), Vec::new());
        let mut sink = |stream, bytes: &[u8]| match stream {
            Stream::Stdout => stdout.extend_from_slice(bytes),
            Stream::Stderr => {
                cx.output.write(Stream::Stderr, bytes);
                stderr.extend_from_slice(&bytes[..bytes.len().min(MOST_SAID.saturating_sub(stderr.len()))]);
            }
        };
        let ended = process::run(start, &cx.cancel, cx.grace, &mut sink).await;
        let ended =
            ended.map_err(|error| OpError::io(format_args!("cannot run `{}`", self.command), &error))?;
        let verb = args.first().copied().unwrap_or_default();
        if ended.stopped {
            return Err(OpError::operation(format!("cancelled while `{} {verb}` ran", self.command)));
        }
        if ended.exit_code != Some(0) {
            // A cut line may hold a part of a secret, which nobody would recognise.
            let whole = match stderr.len() {
                MOST_SAID => stderr.iter().rposition(|byte| *byte == b'\n').unwrap_or(0),
                all => all,
            };
            let said = String::from_utf8_lossy(&stderr[..whole]);
            let said = said.trim();
            let colon = if said.is_empty() { "" } else { ": " };
            return Err(OpError::operation(format!(
                "`{} {verb}`: {}{colon}{said}",
                self.command,
                ended.describe()
            )));
        }
        Ok(stdout)
    }
}
