//! `file.block`: several lines between two marks.

use stead_model::Descriptor;
use stead_model::operation::{Needed, ParamDefault, ParamKind, ParamSpec};
use stead_runner::operation::{OpContext, OpError, Params};

use super::edit::{LARGEST, Lines, Place};
use super::params::{
    AFTER, BACKUP, BEFORE, CREATE, FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, STATE, VALIDATE, WRITE,
};
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::seen::Kind;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.block",
    summary: "Makes sure a marked block of lines is in a file, or is not.",
    params: &[
        PATH,
        ParamSpec::new("name", ParamKind::NonEmptyText, "What the marks call the block.").required(),
        ParamSpec::new("block", ParamKind::Text, "The lines; needed unless `state` is absent.")
            .secret()
            .needed(Needed::UnlessAbsent),
        ParamSpec::new(
            "comment",
            ParamKind::NonEmptyText,
            "What starts a comment in this file; default: `#`.",
        )
        .default(ParamDefault::Text("#")),
        AFTER,
        BEFORE,
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
    ..WRITE
};

pub(super) struct Block;

impl Desire for Block {
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
        let edited = edit(&content, params, absent).map_err(|error| OpError {
            message: format!("`{}`: {}", spot.path.display(), error.message),
            ..error
        })?;
        let want = params::want(cx, disk, params, Kind::File)?.content(edited);
        Ok(vec![Entry { label: String::new(), spot, seen, want }])
    }
}

/// Returns the content with the block as it should be. Pure.
fn edit(content: &[u8], params: &Params, absent: bool) -> Result<Vec<u8>, OpError> {
    let name = params.required("name")?;
    let comment = params.text("comment").unwrap_or("#");
    if name.contains(['\n', '\r']) || comment.contains(['\n', '\r']) {
        return Err(OpError::invalid("`name` and `comment` are one line each"));
    }
    let begin = format!("{comment} BEGIN stead {name}");
    let end = format!("{comment} END stead {name}");
    let mut lines = Lines::new(content);
    let begins = lines.find(|line| line == begin.as_bytes());
    let ends = lines.find(|line| line == end.as_bytes());
    let found = match (begins.as_slice(), ends.as_slice()) {
        ([], []) => None,
        ([from], [to]) if from < to => Some(*from..*to + 1),
        ([_], [_]) => return Err(OpError::permanent(format!("mark `{end}` stands before `{begin}`"))),
        ([_, ..], []) => return Err(OpError::permanent(format!("mark `{begin}` has no `{end}`"))),
        ([], [_, ..]) => return Err(OpError::permanent(format!("mark `{end}` has no `{begin}`"))),
        (_, _) => {
            return Err(OpError::permanent(format!("mark `{begin}` or `{end}` stands there more than once")));
        }
    };
    if absent {
        if let Some(found) = found {
            lines.remove(found);
        }
        return Ok(lines.into_bytes());
    }
    let block = params.required("block")?;
    let wanted: Vec<&[u8]> = std::iter::once(begin.as_str())
        .chain(block.lines())
        .chain(std::iter::once(end.as_str()))
        .map(str::as_bytes)
        .collect();
    if block.lines().any(|line| line == begin || line == end) {
        return Err(OpError::invalid("`block` holds one of its own marks"));
    }
    match found {
        Some(found) if found.clone().map(|i| lines.text(i)).eq(wanted.iter().copied()) => {}
        Some(found) => {
            let at = found.start;
            // Put in before the old one goes, so that the old one's line ends and final newline decide.
            let unfinished_last = found.end == lines.len();
            if unfinished_last {
                lines.insert(found.end, &wanted);
                lines.remove(found);
            } else {
                lines.remove(found);
                lines.insert(at, &wanted);
            }
        }
        None => {
            let at = lines.place(&Place::new(params)?);
            lines.insert(at, &wanted);
        }
    }
    Ok(lines.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn params_of(values: Value) -> Params {
        let Value::Object(values) = values else { panic!("not a map") };
        Params::new(values)
    }

    fn edited(content: &str, values: Value) -> String {
        let params = params_of(values);
        let absent = params.text("state") == Some("absent");
        let once = edit(content.as_bytes(), &params, absent).unwrap();
        assert_eq!(edit(&once, &params, absent).unwrap(), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    #[test]
    fn a_block_is_put_in_replaced_and_taken_out() {
        let one = json!({"name": "n", "block": "1\n2\n"});
        let with = edited("a\nb\n", one.clone());
        assert_eq!(with, "a\nb\n# BEGIN stead n\n1\n2\n# END stead n\n");
        assert_eq!(
            edited(&with, json!({"name": "n", "block": "3"})),
            "a\nb\n# BEGIN stead n\n3\n# END stead n\n"
        );
        assert_eq!(edited(&with, json!({"name": "n", "state": "absent"})), "a\nb\n");
        assert_eq!(edited("a\nb", one.clone()), "a\nb\n# BEGIN stead n\n1\n2\n# END stead n");
        assert_eq!(
            edited("a\nb\n# BEGIN stead n\n9\n# END stead n", one),
            "a\nb\n# BEGIN stead n\n1\n2\n# END stead n"
        );
    }

    #[test]
    fn place_comment_and_line_ends_are_honoured() {
        let block = json!({"name": "n", "block": "1", "comment": ";", "after": "^a"});
        assert_eq!(edited("a\r\nb\r\n", block), "a\r\n; BEGIN stead n\r\n1\r\n; END stead n\r\nb\r\n");
    }

    /// Case 20: a mark without its partner is an error.
    #[test]
    fn marks_that_do_not_pair_are_errors() {
        let params = params_of(json!({"name": "n", "block": "1"}));
        let (begin, end) = ("# BEGIN stead n\n", "# END stead n\n");
        for content in
            [begin.to_owned(), end.to_owned(), format!("{end}{begin}"), format!("{begin}{begin}{end}")]
        {
            let error = edit(content.as_bytes(), &params, false).unwrap_err();
            assert!(error.message.contains("stead n"), "{error}");
        }
    }
}
