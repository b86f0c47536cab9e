//! A YAML document as a tree in which every key and value knows its place.
//!
//! Nodes live in one vector and texts are ranges of the source wherever they can be, so that a plan
//! of a million tasks costs tens of bytes per node. An alias is the node of its anchor: the tree is
//! really a graph without cycles, whose expansion the loader has bounded in size and depth.

use std::fmt;

use serde_json::Number;

use super::Codes;
use crate::diagnostic::{Diagnostic, Place, Source, Span};

/// The number of a node in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

/// A YAML document.
pub struct Tree {
    pub(super) source: Source,
    pub(super) codes: Codes,
    pub(super) nodes: Vec<Stored>,
    /// Children of lists.
    pub(super) items: Vec<u32>,
    /// Keys and values of maps.
    pub(super) entries: Vec<(u32, u32)>,
    pub(super) numbers: Vec<Number>,
    /// Texts that are not written in the source as they read: escapes, folded lines.
    pub(super) texts: String,
    pub(super) root: u32,
}

/// A node as it is kept. Files are at most 64 MiB, so 32 bits hold every offset.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) data: Data,
}

/// What a node is, as it is kept.
#[derive(Clone, Copy)]
pub(super) enum Data {
    Null,
    Bool(bool),
    Number(u32),
    /// A text in the source, and whether it is written plainly, without quotes.
    Written {
        start: u32,
        len: u32,
        plain: bool,
    },
    /// A text among the tree's own.
    Owned {
        start: u32,
        len: u32,
    },
    List {
        first: u32,
        len: u32,
    },
    Map {
        first: u32,
        len: u32,
    },
}

impl Tree {
    /// Returns the top node.
    pub fn root(&self) -> Node<'_> {
        self.node(NodeId(self.root))
    }

    /// Returns the node with this number.
    ///
    /// # Panics
    /// If the number is of another tree.
    pub fn node(&self, id: NodeId) -> Node<'_> {
        assert!((id.0 as usize) < self.nodes.len(), "a node number belongs to the tree it came from");
        Node { tree: self, id }
    }

    /// Returns the text the tree was read from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns where in the document the key or value with this span is: `tasks[2].retry.times`.
    pub fn path_at(&self, span: Span) -> String {
        let Ok(start) = u32::try_from(span.start) else { return String::new() };
        self.path_where(start, &|node| node.span() == span)
    }

    /// Descends to the node at byte `at` for which `is_it` holds, or as near to it as possible.
    fn path_where(&self, at: u32, is_it: &dyn Fn(Node<'_>) -> bool) -> String {
        let start_of = |id: u32| self.nodes[id as usize].start;
        let mut path = String::new();
        let mut node = self.root();
        while !is_it(node) {
            let next = match node.value() {
                Value::List(mut items) => {
                    let index = items.items.as_slice().partition_point(|id| start_of(*id) <= at);
                    let item = index.checked_sub(1).and_then(|index| Some((index, items.nth(index)?)));
                    // An alias leads elsewhere: the path ends where it is used.
                    item.filter(|(_, item)| item.covers(at)).map(|(index, item)| {
                        path.push_str(&format!("[{index}]"));
                        item
                    })
                }
                Value::Map(entries) => {
                    let slice = entries.entries.as_slice();
                    let index = slice.partition_point(|(key, _)| start_of(*key) <= at);
                    index.checked_sub(1).and_then(|index| {
                        let (key, value) = slice[index];
                        let key = self.node(NodeId(key));
                        if !path.is_empty() {
                            path.push('.');
                        }
                        path.push_str(self.codes.show(key.as_text().unwrap_or_default()));
                        let value = self.node(NodeId(value));
                        (!is_it(key) && value.covers(at)).then_some(value)
                    })
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => None,
            };
            match next {
                Some(child) => node = child,
                None => break,
            }
        }
        path
    }

    /// Returns the diagnostic codes of the tree's format.
    pub fn codes(&self) -> Codes {
        self.codes
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({}, {} nodes)", self.source.name, self.nodes.len())
    }
}

/// A key or value of a tree.
#[derive(Clone, Copy)]
pub struct Node<'t> {
    tree: &'t Tree,
    id: NodeId,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Value<'t> {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(&'t Number),
    /// A text.
    Text(&'t str),
    /// A list.
    List(Items<'t>),
    /// A map; its keys are texts, each there once, in written order.
    Map(Entries<'t>),
}

impl<'t> Node<'t> {
    fn stored(self) -> &'t Stored {
        &self.tree.nodes[self.id.0 as usize]
    }

    /// Returns the node's number.
    pub fn id(self) -> NodeId {
        self.id
    }

    /// Returns the tree it belongs to.
    pub fn tree(self) -> &'t Tree {
        self.tree
    }

    /// Returns its range in the source.
    pub fn span(self) -> Span {
        let Stored { start, end, line, column, .. } = *self.stored();
        Span { start: start as usize, end: end as usize, line, column }
    }

    /// Returns its place.
    pub fn place(self) -> Place {
        Place::Text { source: self.tree.source.clone(), span: self.span() }
    }

    /// Returns what it is.
    pub fn value(self) -> Value<'t> {
        let tree = self.tree;
        match self.stored().data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(value),
            Data::Number(index) => Value::Number(&tree.numbers[index as usize]),
            Data::Written { start, len, .. } => Value::Text(cut(&tree.source.text, start, len)),
            Data::Owned { start, len } => Value::Text(cut(&tree.texts, start, len)),
            Data::List { first, len } => {
                Value::List(Items { tree, items: tree.items[first as usize..(first + len) as usize].iter() })
            }
            Data::Map { first, len } => Value::Map(Entries {
                tree,
                entries: tree.entries[first as usize..(first + len) as usize].iter(),
            }),
        }
    }

    /// Returns the text, if it is one.
    pub fn as_text(self) -> Option<&'t str> {
        match self.value() {
            Value::Text(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// Returns the elements, if it is a list.
    pub fn as_list(self) -> Option<Items<'t>> {
        match self.value() {
            Value::List(items) => Some(items),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => None,
        }
    }

    /// Returns the entries, if it is a map.
    pub fn as_map(self) -> Option<Entries<'t>> {
        match self.value() {
            Value::Map(entries) => Some(entries),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => None,
        }
    }

    /// Whether it is a text written without quotes.
    pub fn is_plain_text(self) -> bool {
        matches!(self.stored().data, Data::Written { plain: true, .. })
    }

    /// Returns what is written in the source.
    pub fn raw(self) -> &'t str {
        let span = self.span();
        self.tree.source.text.get(span.start..span.end).unwrap_or_default()
    }

    /// Returns the value of `key`, if it is a map that has it.
    pub fn get(self, key: &str) -> Option<Node<'t>> {
        self.as_map()?.find(|(name, _)| name.as_text() == Some(key)).map(|(_, value)| value)
    }

    /// Returns the key `key` itself, if it is a map that has it.
    pub fn key(self, key: &str) -> Option<Node<'t>> {
        self.as_map()?.find(|(name, _)| name.as_text() == Some(key)).map(|(name, _)| name)
    }

    /// Returns the node as JSON. It recurses as deep as the tree, which is bounded.
    pub fn to_json(self) -> serde_json::Value {
        match self.value() {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => value.into(),
            Value::Number(number) => number.clone().into(),
            Value::Text(text) => text.into(),
            Value::List(items) => items.map(Node::to_json).collect(),
            Value::Map(entries) => entries
                .map(|(key, value)| (key.as_text().unwrap_or_default().to_owned(), value.to_json()))
                .collect(),
        }
    }

    /// Returns the node in words, for messages: `the number 30`.
    pub fn describe(self) -> String {
        match self.value() {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("the boolean {value}"),
            Value::Number(_) | Value::Text(_) if self.tree.codes.shown.is_some() => {
                "another value".to_owned()
            }
            Value::Number(_) => format!("the number {}", self.raw()),
            Value::Text(text) if text.chars().nth(60).is_none() => format!("the text `{text}`"),
            Value::Text(_) => "a long text".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    /// Returns where the node is in the document: `tasks[2].retry.times`.
    ///
    /// It is found by descending to the node's place, so that reading a file does not pay for paths
    /// nobody asks for.
    pub fn path(self) -> String {
        let id = self.id;
        self.tree.path_where(self.stored().start, &|node| node.id == id)
    }

    fn covers(self, at: u32) -> bool {
        (self.stored().start..=self.stored().end).contains(&at)
    }

    /// Returns an error of the format's `bad-value` at this node.
    pub fn bad(self, message: impl Into<String>) -> Diagnostic {
        self.error(self.tree.codes.bad_value, message)
    }

    /// Returns an error at this node.
    pub fn error(self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, self.place(), message).path(self.path())
    }
}

impl fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} at {}:{})", self.describe(), self.span().line, self.span().column)
    }
}

fn cut(text: &str, start: u32, len: u32) -> &str {
    text.get(start as usize..(start + len) as usize).unwrap_or_default()
}

/// The elements of a list.
#[derive(Clone, Debug)]
pub struct Items<'t> {
    tree: &'t Tree,
    items: std::slice::Iter<'t, u32>,
}

impl<'t> Iterator for Items<'t> {
    type Item = Node<'t>;

    fn next(&mut self) -> Option<Node<'t>> {
        self.items.next().map(|id| Node { tree: self.tree, id: NodeId(*id) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }

    fn nth(&mut self, n: usize) -> Option<Node<'t>> {
        self.items.nth(n).map(|id| Node { tree: self.tree, id: NodeId(*id) })
    }
}

impl ExactSizeIterator for Items<'_> {}

/// The keys and values of a map.
#[derive(Clone, Debug)]
pub struct Entries<'t> {
    tree: &'t Tree,
    entries: std::slice::Iter<'t, (u32, u32)>,
}

impl<'t> Iterator for Entries<'t> {
    type Item = (Node<'t>, Node<'t>);

    fn next(&mut self) -> Option<(Node<'t>, Node<'t>)> {
        let (key, value) = *self.entries.next()?;
        Some((Node { tree: self.tree, id: NodeId(key) }, Node { tree: self.tree, id: NodeId(value) }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for Entries<'_> {}
