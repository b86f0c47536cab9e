//! `systemd.unit`: a unit file or a drop-in, whether it starts at boot, and whether it runs.
//!
//! The file is written as every file is; systemd reads its units anew only if it changed. A new file is checked by
//! `systemd-analyze verify`, where there is one, before it takes its place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};
use stead_model::operation::{Needed, ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect, Op};
use stead_runner::operation::{
    Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params, Registry,
};

use crate::command::blocking::Said;
use crate::disk::seen::Kind;
use crate::file::present::source_file;
use crate::file::{self, Filed};
use crate::service::systemd::Systemd;
use crate::service::{
    Activity, Boot, ServiceManager, Unit, Wish as Service, check_name, judge_name, manager, overlay, wait,
};
use crate::system::{Tool, field, has, need_root, op};

/// Where an administrator's units are.
const DIRECTORY: &str = "/etc/systemd/system";
/// What a diff calls whether systemd has read the files as they are.
const READ: &str = "read by systemd";
/// A unit file is short; a longer one is not read to be checked.
const LARGEST: usize = 1 << 20;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "systemd.unit",
    summary: "Makes sure a systemd unit file or drop-in is there, and the unit enabled and running as wished.",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: true,
    platforms: &["linux"],
    root: RootSupport::Files,
    needs_root: true,
    params: &[
        ParamSpec::new(
            "name",
            ParamKind::NonEmptyText,
            "The unit, with its suffix; `.service` if it has none.",
        )
        .required()
        .judged(judge_name),
        ParamSpec::new(
            "content",
            ParamKind::Text,
            "The file's content, as text; this or `source` unless `state` is absent.",
        )
        .needed(Needed::UnlessAbsent),
        ParamSpec::new("source", ParamKind::SourcePath, "A file on the driver that holds the content.")
            .needed(Needed::UnlessAbsent),
        ParamSpec::new(
            "drop_in",
            ParamKind::NonEmptyText,
            "The file is the drop-in of this name, `NAME.d/DROP_IN.conf`, and not the unit itself.",
        )
        .judged(judge_name),
        ParamSpec::new("enabled", ParamKind::Bool, "Whether it starts at boot; default: kept."),
        ParamSpec::new("active", ParamKind::Bool, "Whether it runs; default: kept."),
        ParamSpec::new(
            "state",
            ParamKind::Enum(&["present", "absent"]),
            "`present` (default) or `absent`: then a unit is stopped and disabled first.",
        )
        .default(ParamDefault::Text("present")),
    ],
    exclusive: &[&["content", "source"]],
    one_of: &[],
    result: &[("path", "The file."), ("unit", "The unit.")],
};

/// Adds `systemd.unit`.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(SystemdUnit);
}

struct SystemdUnit;

/// What the parameters ask for.
struct Wish {
    unit: String,
    path: PathBuf,
    drop_in: bool,
    absent: bool,
    enabled: Option<bool>,
    active: Option<bool>,
    /// The file operation that does the file's part, with its parameters.
    file: (&'static str, Params),
}

impl Wish {
    /// Returns the operation's result.
    fn data(&self) -> Value {
        json!({"path": self.path.to_string_lossy(), "unit": self.unit})
    }

    fn new(cx: &OpContext, params: &Params) -> Result<Self, OpError> {
        let name = params.required("name")?;
        check_name(name)?;
        let unit = Systemd { cx }.full_name(name);
        let mut path = Path::new(DIRECTORY).join(&unit);
        let drop_in = params.text("drop_in");
        if let Some(drop_in) = drop_in {
            check_name(drop_in)?;
            let stem = drop_in.strip_suffix(".conf").unwrap_or(drop_in);
            path = Path::new(DIRECTORY).join(format!("{unit}.d")).join(format!("{stem}.conf"));
        }
        let absent = params.text("state") == Some("absent");
        let mut values = Map::from_iter([("path".to_owned(), json!(path.to_string_lossy()))]);
        let file = if absent {
            values.insert("entries".to_owned(), json!({".": {"kind": "absent"}}));
            if let Some(parent) = path.parent().filter(|_| drop_in.is_some()) {
                values.insert("empty_parents".to_owned(), json!([parent.to_string_lossy()]));
            }
            "file.restored"
        } else {
            values.insert("parents".to_owned(), true.into());
            for name in ["content", "source"] {
                values.extend(params.get(name).map(|value| (name.to_owned(), value.clone())));
            }
            if values.len() == 2 {
                return Err(OpError::invalid("a unit needs `content` or `source`"));
            }
            "file.present"
        };
        let given = |name: &str| params.get(name).and_then(Value::as_bool);
        if absent && drop_in.is_none() && (given("enabled") == Some(true) || given("active") == Some(true)) {
            return Err(OpError::invalid("a unit that is absent can be neither enabled nor active"));
        }
        // A unit without its file would be left dangling; a drop-in is not the unit.
        let goes = (absent && drop_in.is_none()).then_some(false);
        Ok(Self {
            drop_in: drop_in.is_some(),
            absent,
            enabled: goes.or_else(|| given("enabled")),
            active: goes.or_else(|| given("active")).filter(|_| cx.root.is_none()),
            file: (file, Params::new(values)),
            unit,
            path,
        })
    }

    fn file_operation(&self) -> Box<dyn Operation> {
        if self.absent {
            Box::new(Filed(file::restored::Restored))
        } else {
            Box::new(Filed(file::present::Present))
        }
    }

    fn see(&self, cx: &OpContext) -> Result<Unit, OpError> {
        if cx.root.is_none() {
            // What runs here must be systemd for the rest to mean anything.
            manager(cx)?;
            if !Path::new("/run/systemd/system").is_dir() {
                return Err(OpError::unsupported("systemd does not run here"));
            }
        }
        if cx.root.is_some() && self.enabled.is_none() {
            return Ok(Unit { name: self.unit.clone(), ..Unit::default() });
        }
        if cx.root.is_some() && !has("systemctl") {
            return Err(OpError::unsupported(
                "this host has no `systemctl` (package systemd) for a root prefix",
            ));
        }
        let mut unit = Systemd { cx }.see(std::slice::from_ref(&self.unit))?.pop().unwrap_or_default();
        overlay(cx, &mut unit);
        unit.stale &= cx.predicted.get(&self.read_anew()).is_none();
        Ok(unit)
    }

    /// Returns under which key a dry run remembers that systemd would have read the unit's files.
    fn read_anew(&self) -> String {
        format!("service:{}:read", self.unit)
    }

    /// Returns the differences of the unit itself.
    fn fields(&self, unit: &Unit) -> Vec<FieldDiff> {
        let mut fields = Vec::new();
        let is_enabled = unit.boot == Boot::Enabled;
        let is_active = matches!(unit.active, Activity::Active);
        if let Some(enabled) = self.enabled.filter(|enabled| *enabled != is_enabled) {
            fields.push(field("enabled", is_enabled, enabled));
        }
        if let Some(active) = self.active.filter(|active| *active != is_active) {
            fields.push(field("active", is_active, active));
        }
        // The file is as it should be, and yet not what systemd goes by: a run was cut off between the two.
        if unit.stale {
            fields.push(field(READ, false, true));
        }
        fields
    }

    /// Lets systemd judge the new file before it takes its place.
    fn verify(&self, cx: &OpContext) -> Result<(), OpError> {
        if self.absent || cx.root.is_some() || !has("systemd-analyze") {
            return Ok(());
        }
        let params = &self.file.1;
        let content = match (params.text("content"), params.text("source")) {
            (Some(content), _) => content.as_bytes().to_vec(),
            (None, Some(source)) => {
                let entry = source_file(cx, source)?;
                if entry.size > LARGEST as u64 {
                    return Err(OpError::permanent(format!("{} bytes are no unit file", entry.size)));
                }
                let path = cx.files.content(source, &entry)?;
                let cannot = |error| OpError::io(format_args!("source `{}`", path.display()), &error);
                std::fs::read(&path).map_err(cannot)?
            }
            (None, None) => return Ok(()),
        };
        if content.len() > LARGEST {
            return Err(OpError::permanent(format!("{} bytes are no unit file", content.len())));
        }
        let made = Tool::new(cx, "mktemp").args(["-d", "--tmpdir", "stead-unit.XXXXXXXX"]).must()?;
        let directory = PathBuf::from(made.trim_end());
        let said = self.analyze(cx, &directory, &content);
        std::fs::remove_dir_all(&directory).unwrap_or(());
        let said = said?;
        // The unit that a drop-in belongs to may come later.
        if said.is_ok() || self.drop_in && said.stderr.contains("not found") {
            return Ok(());
        }
        let text = said.describe().replace(&format!("{}/", directory.display()), "");
        Err(OpError::permanent(format!("`systemd-analyze verify` refuses `{}`: {text}", self.path.display())))
    }

    fn analyze(&self, cx: &OpContext, directory: &Path, content: &[u8]) -> Result<Said, OpError> {
        let cannot = |error: std::io::Error| OpError::io("a unit to verify", &error);
        let below = self.path.strip_prefix(DIRECTORY).unwrap_or(&self.path);
        let file = directory.join(below);
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent).map_err(cannot)?;
        }
        std::fs::write(&file, content).map_err(cannot)?;
        // The empty element at the end stands for the usual directories.
        let path = format!("{}:", directory.display());
        Tool::new(cx, "systemd-analyze")
            .env("SYSTEMD_UNIT_PATH", &path)
            .args(["verify", "--man=no", &self.unit])
            .run()
    }
}

impl Operation for SystemdUnit {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let wish = Wish::new(cx, params)?;
        let unit = wish.see(cx)?;
        let file = wish.file_operation().observe(cx, &wish.file.1)?;
        let fields: Vec<Value> = wish
            .fields(&unit)
            .into_iter()
            .map(|field| json!([field.name, field.before, field.after]))
            .collect();
        let masked = unit.masked && (wish.enabled == Some(true) || wish.active == Some(true));
        if masked {
            return Err(OpError::permanent(format!(
                "`{}` is masked; `systemctl unmask` lets it start again",
                wish.unit
            )));
        }
        Ok(Observed(json!({"file": file.0, "absent": wish.absent, "unit": unit, "fields": fields})))
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        let mut diff = file::diff(&file::records(&Observed(seen.0["file"].clone())));
        for differing in seen.0["fields"].as_array().into_iter().flatten() {
            let name = differing[0].as_str().unwrap_or_default();
            diff.fields.push(field(name, differing[1].clone(), differing[2].clone()));
        }
        diff
    }

    fn unchanged(&self, cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        Some(Wish::new(cx, params).ok()?.data())
    }

    fn permit(&self, _cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root(DESCRIPTOR.name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let wish = Wish::new(cx, params)?;
        let systemd = Systemd { cx };
        let names = std::slice::from_ref(&wish.unit);
        let unit = wish.see(cx)?;
        let differs = |name: &str| wish.fields(&unit).iter().any(|field| field.name == name);
        let timeout = Duration::from_secs(30);
        if wish.absent && differs("active") {
            systemd.stop(names)?;
            wait(cx, &systemd, names, timeout, Service::Stopped)?;
        }
        if wish.absent && differs("enabled") {
            systemd.disable(names)?;
        }
        let files = wish.file_operation();
        let seen = files.observe(cx, &wish.file.1)?;
        let diff = files.diff(&wish.file.1, &seen);
        let mut notes = Vec::new();
        if !diff.is_empty() {
            wish.verify(cx)?;
            notes = files.apply(cx, &wish.file.1, &diff)?.notes;
        }
        if cx.root.is_none() && (unit.stale || !diff.is_empty()) {
            systemd.reload_units()?;
        }
        if !wish.absent {
            match wish.enabled.filter(|_| differs("enabled")) {
                Some(true) => systemd.enable(names)?,
                Some(false) => systemd.disable(names)?,
                None => {}
            }
            match wish.active.filter(|_| differs("active")) {
                Some(true) => {
                    systemd.start(names)?;
                    wait(cx, &systemd, names, timeout, Service::Started)?;
                }
                Some(false) => {
                    systemd.stop(names)?;
                    wait(cx, &systemd, names, timeout, Service::Stopped)?;
                }
                None => {}
            }
        }
        Ok(Applied { data: Some(wish.data()), notes })
    }

    fn predict(&self, cx: &OpContext, params: &Params, diff: &Diff) {
        let Ok(wish) = Wish::new(cx, params) else { return };
        wish.file_operation().predict(cx, &wish.file.1, diff);
        for field in &diff.fields {
            match (field.name.as_str(), field.after.as_bool()) {
                ("enabled", Some(true)) => Service::Enabled.predict(cx, &wish.unit),
                ("enabled", Some(false)) => Service::Disabled.predict(cx, &wish.unit),
                ("active", Some(true)) => Service::Started.predict(cx, &wish.unit),
                ("active", Some(false)) => Service::Stopped.predict(cx, &wish.unit),
                (READ, _) => cx.predicted.set(wish.read_anew(), true.into()),
                _ => {}
            }
        }
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let records = file::records(&Observed(before.0["file"].clone()));
        // `file.restored` lists directories above first.
        let record = records.last()?;
        let mut values: Vec<(&'static str, Value)> = vec![("name", params.get("name")?.clone())];
        values.extend(params.get("drop_in").map(|name| ("drop_in", name.clone())));
        match record.seen.kind {
            Kind::Absent => values.push(("state", "absent".into())),
            Kind::File => {
                let body = record.seen.body.as_ref()?;
                values.push(("content", String::from_utf8(body.bytes()?).ok()?.into()));
            }
            Kind::Directory | Kind::Symlink | Kind::Other | Kind::Unknown => return None,
        }
        for differing in before.0["fields"].as_array().into_iter().flatten() {
            let name = match differing[0].as_str()? {
                "enabled" => "enabled",
                "active" => "active",
                // That nobody wants back.
                _ => continue,
            };
            values.push((name, differing[1].clone()));
        }
        op(DESCRIPTOR.name, values)
    }
}
