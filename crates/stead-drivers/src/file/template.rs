//! `file.template`: a file whose content is rendered.

use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::files::Needs;
use stead_runner::operation::{OpContext, OpError, Params};

use super::params::{BACKUP, FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, VALIDATE, WRITE};
use super::present::source_file;
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::seen::Kind;

/// Templates are text that people write.
const LARGEST: u64 = 16 << 20;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.template",
    summary: "Makes sure a file is there whose content is a rendered template.",
    params: &[
        PATH,
        ParamSpec::new("source", ParamKind::SourcePath, "The template: a file on the driver."),
        ParamSpec::new("content", ParamKind::Text, "The template, as text.").secret(),
        ParamSpec::new(
            "vars",
            ParamKind::Map,
            "Values known as `vars` in the template, over the plan's own; default: none.",
        )
        .secret()
        .default(ParamDefault::EmptyMap),
        MODE,
        OWNER,
        GROUP,
        BACKUP,
        VALIDATE,
        FOLLOW,
        PARENTS,
    ],
    exclusive: &[&["source", "content"]],
    one_of: &[&["source", "content"]],
    ..WRITE
};

pub(super) struct Template;

impl Desire for Template {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn needs(&self, params: &Params) -> Needs {
        Needs { names: true, ..Needs::of(&DESCRIPTOR, params) }
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let (spot, seen) = params::file(disk, params)?;
        let (name, template) = match (params.text("source"), params.text("content")) {
            (Some(source), _) => (source, read(cx, source)?),
            (None, Some(content)) => ("content", content.to_owned()),
            (None, None) => return Err(OpError::invalid("`source` or `content` is needed")),
        };
        let vars = params.get("vars").and_then(serde_json::Value::as_object).cloned().unwrap_or_default();
        let text = cx
            .scope
            .render(&template, &vars)
            .map_err(|error| error.within(format_args!("template `{name}`")))?;
        let want = params::want(cx, disk, params, Kind::File)?.content(text.into_bytes());
        Ok(vec![Entry { label: String::new(), spot, seen, want }])
    }
}

fn read(cx: &OpContext, source: &str) -> Result<String, OpError> {
    use std::io::Read;
    let entry = source_file(cx, source)?;
    if entry.size > LARGEST {
        return Err(OpError::permanent(format!(
            "template `{source}` has {} bytes; one has at most {LARGEST}",
            entry.size
        )));
    }
    let path = cx.files.content(source, &entry)?;
    let cannot = |error: std::io::Error| {
        OpError::permanent(format!("cannot read template `{}`: {error}", path.display()))
    };
    let mut text = String::new();
    std::fs::File::open(&path).map_err(cannot)?.take(LARGEST).read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}
