//! The documents of a file as they are written: aliases, anchors, tags and styles kept, nothing resolved.
//!
//! The reader of formats ([`super::super::read`]) refuses what Stead's own files do not use. Files that are only edited
//! are other people's: here they are taken as they are, as long as a parser reads them in one way.

use std::collections::{HashMap, HashSet};

use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, Span as Marks, StructureStyle};

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span};
use crate::yaml::{Codes, MAX_BYTES, MAX_DEPTH, span_at, too_large};

/// The codes of files that are edited.
const CODES: Codes = Codes::INTENT;

/// What a node is.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Scalar { value: String, style: ScalarStyle },
    List(Vec<usize>),
    Map(Vec<(usize, usize)>),
    Alias,
}

/// A node as it is written.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) span: Span,
    /// The number of its anchor; 0: it has none.
    pub(super) anchor: usize,
    pub(super) tagged: bool,
    /// Whether it is inside brackets or braces.
    pub(super) in_flow: bool,
    /// The number of its event.
    pub(super) event: usize,
}

/// The documents of one file.
pub(super) struct Documents<'s> {
    pub(super) source: &'s Source,
    pub(super) nodes: Vec<Node>,
    /// The top nodes of the documents that hold something.
    pub(super) roots: Vec<usize>,
    /// Anchors that an alias names.
    pub(super) named: HashSet<usize>,
    /// All the parser said, comments too: what two texts have to have in common.
    pub(super) events: Vec<Event<'s>>,
}

/// Returns the documents of `source`.
///
/// # Errors
/// It is no YAML, or a map has a key twice: all such places.
pub(super) fn read(source: &Source) -> Result<Documents<'_>, Diagnostics> {
    if source.text.len() > MAX_BYTES {
        return Err(Diagnostics(vec![too_large(&source.name, source.text.len(), CODES)]));
    }
    let mut reader = Reader {
        documents: Documents {
            source,
            nodes: Vec::new(),
            roots: Vec::new(),
            named: HashSet::new(),
            events: Vec::new(),
        },
        open: Vec::new(),
        problems: Diagnostics::default(),
    };
    reader.read()?;
    if reader.problems.has_errors() { Err(reader.problems) } else { Ok(reader.documents) }
}

impl Documents<'_> {
    /// Returns a problem at a node.
    pub(super) fn problem(&self, node: usize, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, self.place(node), message)
    }

    /// Returns the place of a node.
    pub(super) fn place(&self, node: usize) -> Place {
        Place::Text { source: self.source.clone(), span: self.nodes[node].span }
    }
}

/// A list or map that is not finished.
struct Frame {
    node: usize,
    /// In a map: the key whose value comes next.
    key: Option<usize>,
    flow: bool,
}

struct Reader<'s> {
    documents: Documents<'s>,
    open: Vec<Frame>,
    problems: Diagnostics,
}

impl<'s> Reader<'s> {
    fn read(&mut self) -> Result<(), Diagnostics> {
        let source = self.documents.source;
        let mut options = Options::default();
        options.max_buffered_comment_events = MAX_BYTES;
        options.flow_nesting_limit = MAX_DEPTH;
        options.block_nesting_limit = MAX_DEPTH;
        for event in Parser::new_from_str_with_options(&source.text, options) {
            let (event, marks) = event.map_err(|error| {
                let start = error.marker().byte_offset().unwrap_or(0);
                let span = span_at(&source.text, start, start);
                let place = Place::Text { source: source.clone(), span };
                let problem = Diagnostic::error(CODES.syntax, place, error.info().to_string());
                Diagnostics(vec![problem.help("the file is not edited until it is YAML again")])
            })?;
            self.take(&event, &marks);
            self.documents.events.push(event);
        }
        Ok(())
    }

    fn take(&mut self, event: &Event<'s>, marks: &Marks) {
        match event {
            Event::Scalar(value, style, anchor, tag) => {
                let kind = Kind::Scalar { value: value.to_string(), style: *style };
                let node = self.add(kind, marks, *anchor, tag.is_some());
                self.finish(node);
            }
            Event::SequenceStart(style, anchor, tag) => {
                self.begin(Kind::List(Vec::new()), *style, marks, *anchor, tag.is_some());
            }
            Event::MappingStart(style, anchor, tag) => {
                self.begin(Kind::Map(Vec::new()), *style, marks, *anchor, tag.is_some());
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(frame) = self.open.pop() {
                    self.report_duplicates(frame.node);
                    self.finish(frame.node);
                }
            }
            Event::Alias(anchor) => {
                self.documents.named.insert(*anchor);
                let node = self.add(Kind::Alias, marks, 0, false);
                self.finish(node);
            }
            Event::UnresolvedAlias(_) => {
                let node = self.add(Kind::Alias, marks, 0, false);
                self.finish(node);
            }
            Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
            // They are compared, nothing more; the parser's enum is open.
            Event::Comment(..) | Event::Anchor(..) | _ => {}
        }
    }

    fn add(&mut self, kind: Kind, marks: &Marks, anchor: usize, tagged: bool) -> usize {
        let span = self.span(&kind, marks);
        let in_flow = self.open.last().is_some_and(|frame| frame.flow);
        let event = self.documents.events.len();
        self.documents.nodes.push(Node { kind, span, anchor, tagged, in_flow, event });
        self.documents.nodes.len() - 1
    }

    fn begin(&mut self, kind: Kind, style: StructureStyle, marks: &Marks, anchor: usize, tagged: bool) {
        let node = self.add(kind, marks, anchor, tagged);
        self.open.push(Frame { node, key: None, flow: style == StructureStyle::Flow });
    }

    fn span(&self, kind: &Kind, marks: &Marks) -> Span {
        let text = &self.documents.source.text;
        let offset = |marker: Option<usize>| text.floor_char_boundary(marker.unwrap_or(0).min(text.len()));
        let start = offset(marks.start.byte_offset());
        let mut end = offset(marks.end.byte_offset()).max(start);
        // Blanks after a plain scalar are not part of it.
        if matches!(kind, Kind::Scalar { style: ScalarStyle::Plain, .. }) {
            end = start + text.get(start..end).unwrap_or_default().trim_end().len();
        }
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Span { start, end, line: number(marks.start.line().max(1)), column: number(marks.start.col() + 1) }
    }

    /// Gives a finished node to the list or map it belongs to.
    fn finish(&mut self, node: usize) {
        let Some(frame) = self.open.last_mut() else {
            if !self.is_nothing(node) {
                self.documents.roots.push(node);
            }
            return;
        };
        match &mut self.documents.nodes[frame.node].kind {
            Kind::List(items) => items.push(node),
            Kind::Map(entries) => match frame.key.take() {
                Some(key) => entries.push((key, node)),
                None => frame.key = Some(node),
            },
            Kind::Scalar { .. } | Kind::Alias => {}
        }
    }

    /// Whether nothing at all is written for this node, as between two `---`.
    fn is_nothing(&self, node: usize) -> bool {
        let node = &self.documents.nodes[node];
        matches!(node.kind, Kind::Scalar { .. }) && node.span.start == node.span.end
    }

    fn report_duplicates(&mut self, node: usize) {
        let documents = &self.documents;
        let Kind::Map(entries) = &documents.nodes[node].kind else { return };
        let mut seen: HashMap<&str, usize> = HashMap::with_capacity(entries.len());
        for (key, _) in entries {
            let Kind::Scalar { value, .. } = &documents.nodes[*key].kind else { continue };
            if let Some(first) = seen.insert(value, *key) {
                let message = format!("the key `{value}` is there twice");
                self.problems.push(
                    documents
                        .problem(*key, CODES.syntax, message)
                        .related(documents.place(first), "also here")
                        .help("keep one of them"),
                );
            }
        }
    }
}
