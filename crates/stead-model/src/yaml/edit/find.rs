//! From a path to the one scalar that may be edited there.

use serde_saphyr::granit_parser::ScalarStyle;

use super::Spot;
use super::documents::{Documents, Kind};
use super::path::{self, KeyPath, PathPart};
use crate::diagnostic::{Diagnostic, Diagnostics, Place, suggest};
use crate::yaml::Codes;

/// Why a path leads nowhere, and where it stopped.
struct Lost {
    node: usize,
    message: String,
    help: String,
}

/// Returns the node of the scalar at `spot`.
pub(super) fn scalar(documents: &Documents<'_>, spot: &Spot) -> Result<usize, Diagnostics> {
    let root = document(documents, spot)?;
    let path = spot.path.to_string();
    let told = |lost: Lost| {
        let problem = documents.problem(lost.node, Codes::INTENT.bad_value, lost.message);
        Diagnostics(vec![problem.path(&path).help(lost.help)])
    };
    let way = follow(documents, root, &spot.path).map_err(|lost| {
        let help = elsewhere(documents, root, &spot.path).unwrap_or(lost.help);
        told(Lost { help, ..lost })
    })?;
    let node = *way.last().unwrap_or(&root);
    if let Some(lost) = why_not_editable(documents, &way, node, &path) {
        return Err(told(lost));
    }
    Ok(node)
}

/// Returns the top of the document that is meant.
fn document(documents: &Documents<'_>, spot: &Spot) -> Result<usize, Diagnostics> {
    let fits = |root: &usize| {
        spot.select.iter().all(|(path, wanted)| {
            let way = follow(documents, *root, path).ok();
            let node = way.and_then(|way| way.last().copied());
            node.is_some_and(|node| text(documents, node) == Some(wanted))
        })
    };
    let fitting: Vec<usize> = documents.roots.iter().copied().filter(fits).collect();
    let (first, second) = match fitting.as_slice() {
        [one] => return Ok(*one),
        [first, second, ..] => (Some(*first), Some(*second)),
        [] => (None, None),
    };
    let wish: Vec<String> = spot.select.iter().map(|(path, text)| format!("{path}: {text}")).collect();
    let wish = wish.join(", ");
    let (message, help) = match (documents.roots.len(), fitting.len()) {
        (0, _) => ("the file holds no document".to_owned(), ""),
        (_, 0) => (format!("no document has {wish}"), "correct `select`, or the file"),
        (_, count) if wish.is_empty() => (
            format!("the file holds {count} documents, and `select` does not say which is meant"),
            "add `select: { kind: K, metadata.name: N }` to the edit",
        ),
        (_, count) => (format!("{count} documents have {wish}"), "make `select` say more"),
    };
    let place = match second {
        Some(second) => documents.place(second),
        None => Place::Named(documents.source.name.to_string()),
    };
    let mut problem = Diagnostic::error(Codes::INTENT.bad_value, place, message).path(spot.path.to_string());
    if let Some(first) = first {
        problem = problem.related(documents.place(first), "the first is here");
    }
    Err(Diagnostics(vec![problem.help(help)]))
}

fn text<'d>(documents: &'d Documents<'_>, node: usize) -> Option<&'d str> {
    match &documents.nodes[node].kind {
        Kind::Scalar { value, .. } => Some(value),
        Kind::List(_) | Kind::Map(_) | Kind::Alias => None,
    }
}

/// Returns the nodes from the top to the one at `path`.
fn follow(documents: &Documents<'_>, root: usize, path: &KeyPath) -> Result<Vec<usize>, Lost> {
    let mut way = vec![root];
    let mut node = root;
    for (depth, part) in path.parts().iter().enumerate() {
        let so_far = if depth == 0 { "the document".to_owned() } else { format!("`{}`", path.prefix(depth)) };
        node =
            step(documents, node, part, &so_far).map_err(|(message, help)| Lost { node, message, help })?;
        way.push(node);
    }
    Ok(way)
}

/// Returns the child that `part` names, or what is wrong and what to do.
fn step(
    documents: &Documents<'_>,
    node: usize,
    part: &PathPart,
    so_far: &str,
) -> Result<usize, (String, String)> {
    match (&documents.nodes[node].kind, part) {
        (Kind::Alias, _) => Err((
            format!("{so_far} is an alias: what it names is written elsewhere"),
            "write it out here".to_owned(),
        )),
        (Kind::Map(entries), PathPart::Key(key)) => {
            let hit = entries.iter().find(|(name, _)| text(documents, *name) == Some(key));
            hit.map(|(_, value)| *value).ok_or_else(|| absent(documents, entries, key, so_far))
        }
        (Kind::List(items), PathPart::Index(index)) => items.get(*index).copied().ok_or_else(|| {
            (
                format!("{so_far} has {} elements, not one at [{index}]", items.len()),
                "they are counted from 0".to_owned(),
            )
        }),
        (Kind::List(items), PathPart::Matching { key, value }) => {
            let has = |item: &usize| match &documents.nodes[*item].kind {
                Kind::Map(entries) => entries.iter().any(|(name, found)| {
                    text(documents, *name) == Some(key) && text(documents, *found) == Some(value)
                }),
                Kind::Scalar { .. } | Kind::List(_) | Kind::Alias => false,
            };
            let hits: Vec<usize> = items.iter().copied().filter(has).collect();
            match hits.as_slice() {
                [one] => Ok(*one),
                [] => Err((format!("{so_far} has no element with `{key}: {value}`"), String::new())),
                [..] => Err((
                    format!("{so_far} has {} elements with `{key}: {value}`", hits.len()),
                    "choose one by number: `[0]`".to_owned(),
                )),
            }
        }
        (Kind::Scalar { .. }, _) => {
            Err((format!("{so_far} is a value without anything below it"), String::new()))
        }
        (Kind::Map(_), PathPart::Index(_) | PathPart::Matching { .. }) => {
            Err((format!("{so_far} is a map, not a list"), "name one of its keys".to_owned()))
        }
        (Kind::List(_), PathPart::Key(_)) => Err((
            format!("{so_far} is a list, not a map"),
            "choose an element: `[0]`, `[name=web]`".to_owned(),
        )),
    }
}

fn absent(
    documents: &Documents<'_>,
    entries: &[(usize, usize)],
    key: &str,
    so_far: &str,
) -> (String, String) {
    let keys: Vec<&str> = entries.iter().filter_map(|(name, _)| text(documents, *name)).collect();
    if keys.contains(&"<<") {
        let message = format!("`{key}` is not written in {so_far}; if it is there, it is inherited by `<<`");
        return (message, "write the key out".to_owned());
    }
    (format!("{so_far} has no key `{key}`"), suggest(key, keys))
}

/// Returns where else in the document a key like the path's last one is, in words.
fn elsewhere(documents: &Documents<'_>, root: usize, path: &KeyPath) -> Option<String> {
    let Some(PathPart::Key(last)) = path.parts().last() else { return None };
    let mut open: Vec<(usize, Vec<PathPart>)> = vec![(root, Vec::new())];
    let mut hits: Vec<(u32, String)> = Vec::new();
    while let Some((node, at)) = open.pop() {
        let below = |part: PathPart| [at.clone(), vec![part]].concat();
        match &documents.nodes[node].kind {
            Kind::Map(entries) => {
                for (name, value) in entries {
                    let Some(key) = text(documents, *name) else { continue };
                    let there = below(PathPart::Key(key.to_owned()));
                    if key == last {
                        hits.push((documents.nodes[*name].span.line, path::join(&there)));
                    }
                    open.push((*value, there));
                }
            }
            Kind::List(items) => {
                open.extend(
                    items.iter().enumerate().map(|(index, item)| (*item, below(PathPart::Index(index)))),
                );
            }
            Kind::Scalar { .. } | Kind::Alias => {}
        }
    }
    hits.sort();
    let (line, place) = hits.first()?;
    Some(format!(
        "`{place}` in line {line} has this name, and is not touched: put the key where the path says"
    ))
}

/// Returns why the scalar at the end of `way` cannot be edited, if it cannot.
fn why_not_editable(documents: &Documents<'_>, way: &[usize], node: usize, path: &str) -> Option<Lost> {
    let lost = |node: usize, message: String, help: &str| Some(Lost { node, message, help: help.to_owned() });
    let above = way.iter().copied().filter(|above| *above != node);
    for above in above {
        let anchor = documents.nodes[above].anchor;
        if anchor != 0 && documents.named.contains(&anchor) {
            let message =
                format!("`{path}` is inside an anchored value, so other places would change with it");
            return lost(above, message, "write the value out where it is used");
        }
    }
    let found = &documents.nodes[node];
    match &found.kind {
        Kind::Alias => lost(node, format!("`{path}` is an alias"), "write the value out here"),
        Kind::List(_) => lost(node, format!("`{path}` is a list, not a single value"), ""),
        Kind::Map(_) => lost(node, format!("`{path}` is a map, not a single value"), ""),
        Kind::Scalar { .. } if found.anchor != 0 => lost(
            node,
            format!("`{path}` has an anchor, so other places may change with it"),
            "take the anchor away",
        ),
        Kind::Scalar { .. } if found.tagged => {
            lost(node, format!("`{path}` has a tag"), "take the tag away, or edit it by hand")
        }
        Kind::Scalar { style: ScalarStyle::Literal | ScalarStyle::Folded, .. } => {
            lost(node, format!("`{path}` is a block of lines (`|` or `>`)"), "write it on one line")
        }
        Kind::Scalar { .. } if found.span.start == found.span.end => {
            lost(node, format!("`{path}` has no value yet"), "write one, if only \"\"")
        }
        Kind::Scalar { .. } => None,
    }
}
