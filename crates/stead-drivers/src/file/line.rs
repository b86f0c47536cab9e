//! `file.line`: one line in a file.

use stead_model::Descriptor;
use stead_model::operation::{Needed, ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpContext, OpError, Params};

use super::edit::{LARGEST, Lines, Place, regex};
use super::params::{
    AFTER, BACKUP, BEFORE, CREATE, FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, STATE, VALIDATE, WRITE,
};
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::seen::Kind;
use crate::setup::input;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.line",
    summary: "Makes sure a line is in a file, or is not.",
    params: &[
        PATH,
        ParamSpec::new(
            "line",
            ParamKind::Text,
            "The line, without its end; needed unless `state` is absent.",
        )
        .needed(Needed::UnlessAbsent)
        .judged(|value| judge_texts(value, |text| input::problem(one_line(text)))),
        ParamSpec::new(
            "match",
            ParamKind::Regex,
            "The line to be replaced or removed: the last that matches; default: the line itself.",
        ),
        AFTER,
        BEFORE,
        ParamSpec::new(
            "all",
            ParamKind::Bool,
            "Replace every line that matches, not only the last; default: false.",
        )
        .default(ParamDefault::Flag(false)),
        CREATE,
        STATE,
        MODE,
        OWNER,
        GROUP,
        BACKUP,
        VALIDATE,
        FOLLOW,
        PARENTS,
    ],
    exclusive: &[&["after", "before"]],
    one_of: &[&["line", "match"]],
    ..WRITE
};

pub(super) struct Line;

impl Desire for Line {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let (spot, seen) = params::file(disk, params)?;
        let absent = params.text("state") == Some("absent");
        if seen.kind == Kind::Absent {
            if absent {
                return Ok(Vec::new());
            }
            if !params.flag("create", false) {
                return Err(OpError::operation(format!(
                    "`{}` does not exist; `create: true` makes it",
                    spot.path.display()
                )));
            }
        }
        let content = disk.read(&spot, &seen, LARGEST)?;
        let edited = edit(&content, params, absent)?;
        let want = params::want(cx, disk, params, Kind::File)?.content(edited);
        Ok(vec![Entry { label: String::new(), spot, seen, want }])
    }
}

/// Returns the content with the line as it should be. Pure.
fn edit(content: &[u8], params: &Params, absent: bool) -> Result<Vec<u8>, OpError> {
    let line = params.text("line").map(one_line).transpose()?;
    let pattern = params.text("match").map(|pattern| regex("match", pattern)).transpose()?;
    let mut lines = Lines::new(content);
    let found = match (&pattern, line) {
        (Some(pattern), _) => lines.find(|text| pattern.is_match(text)),
        (None, Some(line)) => lines.find(|text| text == line),
        (None, None) => return Err(OpError::invalid("`line` or `match` is needed")),
    };
    if absent {
        for i in found.into_iter().rev() {
            lines.remove(i..i + 1);
        }
        return Ok(lines.into_bytes());
    }
    let line = line.ok_or_else(|| OpError::invalid("`line` is needed unless `state` is absent"))?;
    let all = params.flag("all", false);
    if found.len() > 1 && !all && pattern.is_some_and(|pattern| !pattern.is_match(line)) {
        return Err(OpError::permanent(format!(
            "{} lines match `match` and `line` does not: each run would replace another one; `all: true` replaces them at \
             once, or let `match` match `line` too",
            found.len()
        )));
    }
    match found.last() {
        Some(_) if all => found.iter().for_each(|i| lines.set(*i, line)),
        Some(last) => lines.set(*last, line),
        // The line may be there and yet not match its own `match`: put in once is enough.
        None if !lines.find(|text| text == line).is_empty() => {}
        None => {
            let at = lines.place(&Place::new(params)?);
            lines.insert(at, &[line]);
        }
    }
    Ok(lines.into_bytes())
}

/// Returns the bytes of `line` if it is one.
fn one_line(line: &str) -> Result<&[u8], OpError> {
    if line.contains('\n') || line.ends_with('\r') {
        return Err(OpError::invalid("`line` holds a line end; `file.block` takes several lines"));
    }
    Ok(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn edited(content: &str, values: Value) -> String {
        let Value::Object(values) = values else { panic!("not a map") };
        let params = Params::new(values);
        let absent = params.text("state") == Some("absent");
        let once = edit(content.as_bytes(), &params, absent).unwrap();
        assert_eq!(edit(&once, &params, absent).unwrap(), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    /// Case 20: line ends, a missing final newline and three matches.
    #[test]
    fn line_ends_and_other_matches_are_kept() {
        let line = json!({"line": "b=2", "match": "^b="});
        assert_eq!(edited("a=1\r\nb=1\r\nc=1\r\n", line.clone()), "a=1\r\nb=2\r\nc=1\r\n");
        assert_eq!(edited("a=1\nb=1", line.clone()), "a=1\nb=2");
        assert_eq!(edited("b=0\nb=1\nb=3\n", line.clone()), "b=0\nb=1\nb=2\n");
        assert_eq!(edited("b=0\nb=1\n", json!({"line": "b=2", "match": "^b=", "all": true})), "b=2\nb=2\n");
        assert_eq!(edited("a=1", line.clone()), "a=1\nb=2");
        assert_eq!(edited("a\r\nz", json!({"line": "b"})), "a\r\nz\r\nb");
        assert_eq!(edited("", line), "b=2\n");
    }

    #[test]
    fn the_place_is_used_only_if_nothing_matches() {
        let after = |at: &str| json!({"line": "new", "after": at});
        assert_eq!(edited("x1\nx2\ny\n", after("^x")), "x1\nx2\nnew\ny\n");
        assert_eq!(edited("x\ny\n", after("^none")), "x\ny\nnew\n");
        assert_eq!(edited("x\ny\n", after("EOF")), "x\ny\nnew\n");
        assert_eq!(edited("x\ny", json!({"line": "new", "before": "BOF"})), "new\nx\ny");
        // Both words are places, whichever of the two names them.
        assert_eq!(edited("x\ny", json!({"line": "new", "after": "BOF"})), "new\nx\ny");
        assert_eq!(edited("x\ny\n", json!({"line": "new", "before": "EOF"})), "x\ny\nnew\n");
        assert_eq!(edited("x1\nx2\ny\n", json!({"line": "new", "before": "^x"})), "x1\nnew\nx2\ny\n");
        assert_eq!(edited("new\nx\n", after("^x")), "new\nx\n");
        assert_eq!(edited("x\n", json!({"line": "new", "match": "^no"})), "x\nnew\n");
    }

    /// Rule 2: what would never be as wished is refused before anything is written.
    #[test]
    fn a_line_that_would_be_put_in_by_every_run_is_refused() {
        let refused = |content: &str, values: Value| {
            let Value::Object(values) = values else { panic!("not a map") };
            edit(content.as_bytes(), &Params::new(values), false).unwrap_err()
        };
        let error = refused("b=0\nb=1\n", json!({"line": "c=2", "match": "^b="}));
        assert!(
            error.message.starts_with("2 lines match") && error.message.contains("`all: true`"),
            "{error}"
        );
        assert_eq!(edited("b=0\nb=1\n", json!({"line": "c=2", "match": "^b=", "all": true})), "c=2\nc=2\n");
        assert_eq!(edited("b=0\na\n", json!({"line": "c=2", "match": "^b="})), "c=2\na\n");
        // What is read of a line has no carriage return at its end.
        assert!(refused("a\n", json!({"line": "b\r"})).message.contains("line end"));
        assert_eq!(edited("a\n", json!({"line": "b\rc"})), "a\nb\rc\n");
    }

    #[test]
    fn absent_removes_every_match() {
        assert_eq!(edited("a\nb\na\n", json!({"line": "a", "state": "absent"})), "b\n");
        assert_eq!(edited("a1\nb\na2", json!({"match": "^a", "state": "absent"})), "b");
        assert_eq!(edited("a", json!({"line": "a", "state": "absent"})), "");
    }
}
