//! `sysctl.value`: a kernel parameter, running and after the next start.

use stead_model::Descriptor;
use stead_model::operation::{Needed, ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpError, Params};

use super::parameters::{dotted, normalised, path};
use crate::file::edit::Lines;
use crate::file::params::STATE;
use crate::setup::live::Live;
use crate::setup::{CONFIGURE, Configure, Setup, input};

const FILE: &str = "/etc/sysctl.d/60-stead.conf";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "sysctl.value",
    summary: "Makes sure a kernel parameter has a value: running and in /etc/sysctl.d/60-stead.conf.",
    params: &[
        ParamSpec::new("key", ParamKind::Line, "Parameter, such as net.ipv4.ip_forward.")
            .required()
            .judged(|value| judge_texts(value, |text| input::problem(path(text)))),
        ParamSpec::new("value", ParamKind::TextOrNumber, "Its value; needed unless `state` is absent.")
            .needed(Needed::UnlessAbsent),
        ParamSpec::new("persist", ParamKind::Bool, "Write it to the file; default: true.")
            .default(ParamDefault::Flag(true)),
        ParamSpec::new("runtime", ParamKind::Bool, "Set it in the running kernel; default: true.")
            .default(ParamDefault::Flag(true)),
        ParamSpec::new(
            "state",
            STATE.kind,
            "`present` (default) or `absent`, which removes the line and leaves the running value.",
        )
        .default(ParamDefault::Text("present")),
    ],
    ..CONFIGURE
};

pub(super) struct Sysctl;

impl Configure for Sysctl {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let key = path(params.required("key")?)?;
        let absent = input::is_absent(params);
        let value = match params.texts("value").first() {
            Some(value) => Some(normalised(input::on_one_line("value", value)?)),
            None if absent => None,
            None => return Err(OpError::invalid("`value` is needed unless `state` is absent")),
        };
        let value = value.filter(|_| !absent);
        if params.flag("persist", true) {
            let content = setup.read(FILE.as_ref())?;
            let edited = edit(content.as_deref().unwrap_or_default(), &key, value.as_deref());
            match content {
                // Nothing is in it any more.
                Some(_) if absent && edited.is_empty() => setup.absent(FILE)?,
                None if absent => {}
                Some(_) | None => setup.content(FILE, edited)?,
            }
        }
        match value {
            Some(value) if params.flag("runtime", true) => setup.wish(Live::Parameter(key), value.into()),
            Some(_) | None => Ok(()),
        }
    }
}

/// Returns the content with one line for `key`, or none. Pure.
fn edit(content: &[u8], key: &str, value: Option<&str>) -> Vec<u8> {
    let mut lines = Lines::new(content);
    let mut found = lines.find(|text| setting(text).is_some_and(|(found, _)| found == key));
    let Some(value) = value else {
        for i in found.into_iter().rev() {
            lines.remove(i..i + 1);
        }
        return lines.into_bytes();
    };
    let line = format!("{} = {value}", dotted(key));
    // The last one wins when the file is read: it is the one to keep.
    match found.pop() {
        None => lines.insert(lines.len(), &[line.as_bytes()]),
        Some(last) => {
            if setting(lines.text(last)).is_none_or(|(_, found)| found != value) {
                lines.set(last, line.as_bytes());
            }
            for i in found.into_iter().rev() {
                lines.remove(i..i + 1);
            }
        }
    }
    lines.into_bytes()
}

/// Returns the parameter and the value of a line that sets one.
fn setting(line: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(line).ok()?.trim();
    if text.starts_with(['#', ';']) {
        return None;
    }
    let (key, value) = text.split_once('=')?;
    let key = key.trim();
    Some((path(key.strip_prefix('-').unwrap_or(key)).ok()?, normalised(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(content: &str, value: Option<&str>) -> String {
        let once = edit(content.as_bytes(), "net/ipv4/ip_forward", value);
        assert_eq!(edit(&once, "net/ipv4/ip_forward", value), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    #[test]
    fn one_line_for_the_key_and_others_kept() {
        assert_eq!(edited("", Some("1")), "net.ipv4.ip_forward = 1\n");
        assert_eq!(edited("# c\nvm.x=1", Some("1")), "# c\nvm.x=1\nnet.ipv4.ip_forward = 1");
        assert_eq!(edited("net/ipv4/ip_forward=0\nvm.x=1\n", Some("1")), "net.ipv4.ip_forward = 1\nvm.x=1\n");
        assert_eq!(edited("net.ipv4.ip_forward=1\n", Some("1")), "net.ipv4.ip_forward=1\n");
        assert_eq!(
            edited("net.ipv4.ip_forward=1\n; x\n-net.ipv4.ip_forward = 0\n", Some("1")),
            "; x\nnet.ipv4.ip_forward = 1\n"
        );
        assert_eq!(edited("a.b=1\nnet.ipv4.ip_forward=1\n#x\n", None), "a.b=1\n#x\n");
    }
}
