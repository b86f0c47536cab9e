//! From the parser's events to a [`Tree`], refusing what the formats do not allow.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{
    ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Span as Marks, Tag,
};

use super::scalar::{self, Scalar};
use super::tree::{Data, NodeId, Stored, Tree};
use super::{Codes, MAX_DEPTH, span_at, too_large};
use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span};

/// What all aliases of a file may add together: a node counts one, a text one more per 32 bytes.
const ALIAS_BUDGET: u64 = 1_000_000;

/// The nesting the parser itself allows: more than ours, so that our message is the one seen.
const PARSER_DEPTH: usize = MAX_DEPTH + 32;

/// Maps up to this many keys are searched for duplicates pair by pair, larger ones with a table.
const SMALL_MAP: usize = 16;

/// Returns the document `source` holds; nothing if it is not YAML. Every problem found is added to
/// `diagnostics`; after a refused detail (a duplicate key, a tag) the tree goes on without it.
pub fn read(source: &Source, codes: Codes, diagnostics: &mut Diagnostics) -> Option<Tree> {
    if source.text.len() > codes.max_bytes {
        diagnostics.push(too_large(&source.name, source.text.len(), codes));
        return None;
    }
    if let Some(at) = forbidden_character(&source.text) {
        let span = span_at(&source.text, at, at + 1);
        let place = Place::Text { source: source.clone(), span };
        let message = format!("the control character {:#04x} is not allowed", source.text.as_bytes()[at]);
        diagnostics.push(
            Diagnostic::error(codes.syntax, place, message).help("write it as an escape in double quotes"),
        );
        return None;
    }
    let mut loader = Loader::new(source, codes);
    let outcome = loader.run();
    diagnostics.0.append(&mut loader.diagnostics.0);
    outcome.ok()?;
    Some(loader.tree)
}

fn forbidden_character(text: &str) -> Option<usize> {
    text.bytes().position(|byte| matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 127))
}

/// The document cannot be read further.
struct Stop;

/// What a finished node means for the aliases that name it.
#[derive(Clone, Copy)]
struct Extent {
    cost: u64,
    height: usize,
}

/// A list or map that is not finished.
struct Frame {
    id: u32,
    is_map: bool,
    /// In a map: the key whose value comes next, and whether the entry is kept.
    key: Option<(u32, bool)>,
    /// Where its children begin on the stack of children.
    first_child: usize,
    anchor: usize,
    extent: Extent,
}

struct Loader<'s> {
    source: &'s Source,
    tree: Tree,
    diagnostics: Diagnostics,
    frames: Vec<Frame>,
    /// Children of all unfinished lists, then of maps as pairs.
    children: Vec<(u32, u32)>,
    anchors: HashMap<usize, (u32, Extent)>,
    spent: u64,
}

impl<'s> Loader<'s> {
    fn new(source: &'s Source, codes: Codes) -> Self {
        let tree = Tree {
            source: source.clone(),
            codes,
            nodes: Vec::new(),
            items: Vec::new(),
            entries: Vec::new(),
            numbers: Vec::new(),
            texts: String::new(),
            root: 0,
        };
        Self {
            source,
            tree,
            diagnostics: Diagnostics::default(),
            frames: Vec::new(),
            children: Vec::new(),
            anchors: HashMap::new(),
            spent: 0,
        }
    }

    fn run(&mut self) -> Result<(), Stop> {
        let mut options = serde_saphyr::granit_parser::Options::default();
        options.set_emit_comments(false);
        options.emit_unresolved_aliases = true;
        options.flow_nesting_limit = PARSER_DEPTH;
        options.block_nesting_limit = PARSER_DEPTH;
        let text: &'s str = &self.source.text;
        let mut documents = 0;
        let mut refused = None;
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, marks) = event.map_err(|error| self.syntax_error(&error))?;
            match event {
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents == 2 {
                        let problem = self.problem(&marks, "a second document begins here; a file holds one");
                        self.diagnostics
                            .push(problem.help("put each document in its own file, without `---` between"));
                        break;
                    }
                }
                Event::Scalar(value, style, anchor, tag) => {
                    self.refuse_tag(tag.as_deref(), &marks);
                    self.scalar(&value, style, anchor, &marks)?;
                }
                Event::SequenceStart(_, anchor, tag) => {
                    self.refuse_tag(tag.as_deref(), &marks);
                    self.open(false, anchor, &marks)?;
                }
                Event::MappingStart(_, anchor, tag) => {
                    self.refuse_tag(tag.as_deref(), &marks);
                    self.open(true, anchor, &marks)?;
                }
                Event::SequenceEnd | Event::MappingEnd => self.close(&marks)?,
                Event::Alias(anchor) => self.alias(anchor, &marks)?,
                Event::UnresolvedAlias(name) => {
                    let name = self.tree.codes.show(&name);
                    let problem =
                        self.problem(&marks, format!("there is no anchor `&{name}` before this alias"));
                    self.diagnostics.push(problem.help("if it is meant as text, put it in quotes"));
                    let id = self.add(&marks, Data::Null)?;
                    self.finish(id, 0, Extent { cost: 1, height: 1 })?;
                }
                Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
                // Comments and anchor events are switched off; the parser's enum is open.
                other @ (Event::Comment(..) | Event::Anchor(..) | _) => refused = Some(format!("{other:?}")),
            }
        }
        if let Some(event) = refused {
            let event = self.tree.codes.show(&event);
            let place = Place::Named(self.source.name.to_string());
            self.diagnostics.push(Diagnostic::error(
                self.tree.codes.syntax,
                place,
                format!("the parser said `{event}`, which is not known here"),
            ));
            return Err(Stop);
        }
        if self.tree.nodes.is_empty() {
            self.tree.nodes.push(Stored { start: 0, end: 0, line: 1, column: 1, data: Data::Null });
        }
        Ok(())
    }

    fn offset(&self, marker: &Marker) -> usize {
        let text = &self.source.text;
        text.floor_char_boundary(marker.byte_offset().unwrap_or(0).min(text.len()))
    }

    fn span(&self, marks: &Marks) -> Span {
        let start = self.offset(&marks.start);
        let end = self.offset(&marks.end).max(start);
        Span { start, end, line: narrow(marks.start.line().max(1)), column: narrow(marks.start.col() + 1) }
    }

    fn problem(&self, marks: &Marks, message: impl Into<String>) -> Diagnostic {
        let place = Place::Text { source: self.source.clone(), span: self.span(marks) };
        Diagnostic::error(self.tree.codes.syntax, place, message)
    }

    fn syntax_error(&mut self, error: &ScanError) -> Stop {
        let start = self.offset(error.marker());
        let place =
            Place::Text { source: self.source.clone(), span: span_at(&self.source.text, start, start) };
        // The parser looks ahead, so it may meet its own limit before we count to ours.
        let message = if *error.kind() == ErrorKind::RecursionLimitExceeded {
            format!("nested deeper than {} levels", self.tree.codes.max_depth)
        } else {
            self.tree.codes.show_error(error.info(), "this is not YAML")
        };
        let mut problem = Diagnostic::error(self.tree.codes.syntax, place, message);
        let text = &self.source.text;
        let line = text.get(..start).unwrap_or_default().rfind('\n').map_or(0, |at| at + 1);
        let line = text.get(line..).unwrap_or_default().lines().next().unwrap_or_default();
        if line.contains(": {{") || line.contains("- {{") {
            problem = problem.help("put a value that begins with `{{` in quotes: \"{{ … }}\"");
        } else if line.trim_start_matches(' ').starts_with('\t') {
            problem = problem.help("indent with blanks, not tabs");
        }
        self.diagnostics.push(problem);
        Stop
    }

    fn refuse_tag(&mut self, tag: Option<&Tag>, marks: &Marks) {
        if tag.is_some() {
            let at = marks.tag_span().unwrap_or(*marks);
            let problem = self.problem(&at, "tags are not used here");
            self.diagnostics.push(problem.help("leave it out; put a value in quotes to make it text"));
        }
    }

    fn add(&mut self, marks: &Marks, data: Data) -> Result<u32, Stop> {
        let Span { start, end, line, column } = self.span(marks);
        let id = u32::try_from(self.tree.nodes.len()).map_err(|_| Stop)?;
        self.tree.nodes.push(Stored { start: narrow(start), end: narrow(end), line, column, data });
        Ok(id)
    }

    fn scalar(&mut self, value: &str, style: ScalarStyle, anchor: usize, marks: &Marks) -> Result<(), Stop> {
        let plain = style == ScalarStyle::Plain;
        let span = self.span(marks);
        let data = match if plain { scalar::classify(value) } else { Scalar::Text } {
            Scalar::Null => Data::Null,
            Scalar::Bool(value) => Data::Bool(value),
            Scalar::Number(number) => {
                self.tree.numbers.push(number);
                Data::Number(narrow(self.tree.numbers.len() - 1))
            }
            Scalar::Unusable(why) => {
                let problem = self.problem(marks, why);
                self.diagnostics.push(problem.help("put it in quotes if it is text"));
                self.text(value, span, plain)
            }
            Scalar::Text => self.text(value, span, plain),
        };
        let id = self.add(marks, data)?;
        // A value that is not written has no place of its own: its key is where a reader looks.
        if span.start == span.end
            && plain
            && let Some((key, _)) = self.frames.last().and_then(|frame| frame.key)
        {
            let key = self.tree.nodes[key as usize];
            self.tree.nodes[id as usize] = Stored { data, ..key };
        }
        self.finish(id, anchor, Extent { cost: 1 + value.len() as u64 / 32, height: 1 })
    }

    fn text(&mut self, value: &str, span: Span, plain: bool) -> Data {
        let len = value.len();
        for start in [span.start, span.start + 1] {
            if self.source.text.get(start..start + len) == Some(value)
                && start + len <= span.end.max(span.start)
            {
                return Data::Written { start: narrow(start), len: narrow(len), plain };
            }
        }
        let start = narrow(self.tree.texts.len());
        self.tree.texts.push_str(value);
        Data::Owned { start, len: narrow(len) }
    }

    fn open(&mut self, is_map: bool, anchor: usize, marks: &Marks) -> Result<(), Stop> {
        let id = self.add(marks, Data::Null)?;
        if self.frames.len() >= self.tree.codes.max_depth {
            self.too_deep(marks);
            return Err(Stop);
        }
        let extent = Extent { cost: 1, height: 1 };
        self.frames.push(Frame { id, is_map, key: None, first_child: self.children.len(), anchor, extent });
        Ok(())
    }

    fn too_deep(&mut self, marks: &Marks) {
        let message = format!("nested deeper than {} levels", self.tree.codes.max_depth);
        let problem = self.problem(marks, message);
        self.diagnostics.push(problem);
    }

    fn close(&mut self, marks: &Marks) -> Result<(), Stop> {
        let Some(frame) = self.frames.pop() else { return Err(Stop) };
        let children = self.children.split_off(frame.first_child);
        let end = narrow(self.offset(&marks.end));
        let last = children.last().map(|(_, value)| self.tree.nodes[*value as usize].end);
        let node = &mut self.tree.nodes[frame.id as usize];
        // The end of a block collection is only noticed at the next token: its last child ends it.
        let closes = marks.start.index() != marks.end.index();
        node.end = if closes { end } else { last.unwrap_or(node.end) }.max(node.start);
        let data = if frame.is_map {
            let kept = self.without_duplicates(children);
            let first = narrow(self.tree.entries.len());
            let len = narrow(kept.len());
            self.tree.entries.extend(kept);
            Data::Map { first, len }
        } else {
            let first = narrow(self.tree.items.len());
            self.tree.items.extend(children.iter().map(|(_, value)| *value));
            Data::List { first, len: narrow(children.len()) }
        };
        self.tree.nodes[frame.id as usize].data = data;
        self.finish(frame.id, frame.anchor, frame.extent)
    }

    fn alias(&mut self, anchor: usize, marks: &Marks) -> Result<(), Stop> {
        let Some((id, extent)) = self.anchors.get(&anchor).copied() else {
            let problem = self.problem(marks, "this alias is inside the value it names");
            self.diagnostics.push(problem);
            return Err(Stop);
        };
        self.spent = self.spent.saturating_add(extent.cost);
        if self.spent > ALIAS_BUDGET {
            let problem = self
                .problem(marks, format!("aliases of this file stand for more than {ALIAS_BUDGET} values"));
            self.diagnostics.push(problem.help("write the values out, or generate the file"));
            return Err(Stop);
        }
        if self.frames.len() + extent.height > self.tree.codes.max_depth {
            self.too_deep(marks);
            return Err(Stop);
        }
        self.finish(id, 0, extent)
    }

    /// Gives a finished node to the list or map it belongs to.
    fn finish(&mut self, id: u32, anchor: usize, extent: Extent) -> Result<(), Stop> {
        if anchor != 0 {
            self.anchors.insert(anchor, (id, extent));
        }
        let Some(frame) = self.frames.last_mut() else {
            self.tree.root = id;
            return Ok(());
        };
        frame.extent.cost = frame.extent.cost.saturating_add(extent.cost);
        frame.extent.height = frame.extent.height.max(extent.height + 1);
        if !frame.is_map {
            self.children.push((id, id));
        } else if let Some((key, keep)) = frame.key.take() {
            if keep {
                self.children.push((key, id));
            }
        } else {
            let keep = self.accept_key(id);
            if let Some(frame) = self.frames.last_mut() {
                frame.key = Some((id, keep));
            }
        }
        Ok(())
    }

    /// Whether `id` can be a key; if not, says so.
    fn accept_key(&mut self, id: u32) -> bool {
        let node = self.tree.node(NodeId(id));
        let problem = match self.tree.nodes[id as usize].data {
            Data::Written { plain: true, .. } if node.as_text() == Some("<<") => {
                Diagnostic::error(self.tree.codes.syntax, node.place(), "merge keys (`<<`) are not used here")
                    .help("write the keys out, or use `defaults` where the format has it")
            }
            Data::Written { .. } | Data::Owned { .. } => return true,
            Data::List { .. } | Data::Map { .. } => {
                let braces = node.raw().starts_with('{');
                Diagnostic::error(
                    self.tree.codes.syntax,
                    node.place(),
                    "a key must be text, not a list or a map",
                )
                .help(if braces {
                    "put a value that begins with `{{` in quotes: \"{{ … }}\""
                } else {
                    "write a plain word"
                })
            }
            Data::Null | Data::Bool(_) | Data::Number(_) => {
                let raw = node.raw();
                Diagnostic::error(
                    self.tree.codes.syntax,
                    node.place(),
                    format!("a key must be text, not {}", node.describe()),
                )
                .help(format!(
                    "put it in quotes: \"{}\"",
                    if raw == ":" { "" } else { self.tree.codes.show(raw) }
                ))
            }
        };
        self.diagnostics.push(problem);
        false
    }

    fn without_duplicates(&mut self, mut entries: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
        let tree = &self.tree;
        let text = |id: u32| tree.node(NodeId(id)).as_text().unwrap_or_default();
        let mut repeats: Vec<(usize, u32)> = Vec::new();
        if entries.len() <= SMALL_MAP {
            for (at, (key, _)) in entries.iter().enumerate() {
                if let Some((first, _)) = entries[..at].iter().find(|(other, _)| text(*other) == text(*key)) {
                    repeats.push((at, *first));
                }
            }
        } else {
            let mut seen: HashMap<&str, u32> = HashMap::with_capacity(entries.len());
            for (at, (key, _)) in entries.iter().enumerate() {
                match seen.entry(text(*key)) {
                    std::collections::hash_map::Entry::Occupied(first) => repeats.push((at, *first.get())),
                    std::collections::hash_map::Entry::Vacant(place) => {
                        place.insert(*key);
                    }
                }
            }
        }
        if repeats.is_empty() {
            return entries;
        }
        let problems: Vec<Diagnostic> = repeats
            .iter()
            .map(|(at, first)| {
                let node = tree.node(NodeId(entries[*at].0));
                let name = tree.codes.show(node.as_text().unwrap_or_default());
                let message = format!("the key `{name}` is there twice");
                Diagnostic::error(tree.codes.syntax, node.place(), message)
                    .related(tree.node(NodeId(*first)).place(), "first here")
                    .help("keep one of them")
            })
            .collect();
        self.diagnostics.0.extend(problems);
        let mut index = 0;
        entries.retain(|_| {
            index += 1;
            repeats.binary_search_by_key(&(index - 1), |(at, _)| *at).is_err()
        });
        entries
    }
}

/// Offsets, lines and counts of a file of at most 64 MiB fit in 32 bits.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
