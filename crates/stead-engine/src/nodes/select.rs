//! Which nodes a command is about: `--depth` and `--only`.

use stead_model::diagnostic::suggest;

use super::Forest;
use super::problems::candidates;
use crate::target::Glob;

/// What a command does with nodes, as far as selection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Makes them: absent nodes around them have to be made first.
    Make,
    /// Removes them, with all that is in them.
    Remove,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Levels 1 to this; none: all.
    pub depth: Option<usize>,
    /// Names and globs; empty: all.
    pub only: Vec<String>,
}

/// Why a node is selected although nobody named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// A selected node is made in it, and it is absent.
    Ancestor,
    /// It is in a selected node.
    Descendant,
}

/// Which nodes are selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// For every node whether it is.
    pub selected: Vec<bool>,
    /// Those that nobody named, in file order.
    pub added: Vec<(usize, Added)>,
}

/// Why nothing is selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// A word names no node.
    #[error("`--only {word}` names no node of the manifest; {}", suggest(word, candidates.iter().map(String::as_str)))]
    NoMatch {
        /// The word.
        word: String,
        /// Nodes that could have been meant.
        candidates: Vec<String>,
    },
    /// A word names no node that is known, of whichever manifest.
    #[error("`--only {word}` names no node that is known; {}", suggest(word, candidates.iter().map(String::as_str)))]
    Unknown {
        /// The word.
        word: String,
        /// Nodes that could have been meant.
        candidates: Vec<String>,
    },
    /// All nodes that are named are on levels that are cut off.
    #[error("`--depth {depth}` leaves nothing of `--only {only}`: these nodes are on deeper levels")]
    Deeper {
        /// What was named.
        only: String,
        /// The last level that counts.
        depth: usize,
    },
    /// A word is no glob.
    #[error("`--only {word}`: {why}")]
    BadGlob {
        /// The word.
        word: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Returns the nodes that `choice` means for `verb`; `exists` tells whether a node is there already.
pub fn select(
    forest: &Forest,
    choice: &Choice,
    verb: Verb,
    exists: &dyn Fn(usize) -> bool,
) -> Result<Selection, SelectError> {
    let mut selected = vec![choice.only.is_empty(); forest.nodes.len()];
    let words = words(&choice.only);
    if words.is_empty() && !choice.only.is_empty() {
        return Err(no_match(forest, &choice.only.join(",")));
    }
    for word in words {
        mark(forest, word, &mut selected)?;
    }
    if let Some(depth) = choice.depth {
        for (node, selected) in forest.nodes.iter().zip(&mut selected) {
            *selected &= node.depth < depth;
        }
        if !choice.only.is_empty() && !selected.contains(&true) {
            return Err(SelectError::Deeper { only: choice.only.join(","), depth });
        }
    }
    let mut added = Vec::new();
    match verb {
        // Children before parents: what is added pulls in its own parent.
        Verb::Make => {
            for &index in forest.order().iter().rev() {
                if let Some(parent) = forest.nodes[index].parent
                    && selected[index]
                    && !selected[parent]
                    && !exists(parent)
                {
                    selected[parent] = true;
                    added.push((parent, Added::Ancestor));
                }
            }
        }
        Verb::Remove => {
            for &index in forest.order() {
                if let Some(parent) = forest.nodes[index].parent
                    && selected[parent]
                    && !selected[index]
                {
                    selected[index] = true;
                    added.push((index, Added::Descendant));
                }
            }
        }
    }
    added.sort_unstable_by_key(|(index, _)| *index);
    Ok(Selection { selected, added })
}

/// Returns the names and globs that were given, repeated or separated by commas.
fn words(only: &[String]) -> Vec<&str> {
    let words = only.iter().flat_map(|words| words.split(',')).map(str::trim);
    words.filter(|word| !word.is_empty()).collect()
}

/// Checks that every word of `only` means a node among `known`, which no manifest is asked about.
///
/// # Errors
/// With the first word that does not.
pub fn check_known<'a>(
    only: &[String],
    known: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), SelectError> {
    let unknown = |word: &str| SelectError::Unknown {
        word: word.to_owned(),
        candidates: candidates(word, known.clone()),
    };
    let words = words(only);
    if words.is_empty() && !only.is_empty() {
        return Err(unknown(&only.join(",")));
    }
    for word in words {
        let glob =
            Glob::parse(word).map_err(|(_, why)| SelectError::BadGlob { word: word.to_owned(), why })?;
        if !known.clone().any(|name| glob.matches(name)) {
            return Err(unknown(word));
        }
    }
    Ok(())
}

/// Whether `only` means the node `name`, which no manifest has. Nothing at all means every node.
pub fn means(only: &[String], name: &str) -> bool {
    let mut words = only.iter().flat_map(|words| words.split(',')).map(str::trim);
    only.is_empty() || words.any(|word| Glob::parse(word).is_ok_and(|glob| glob.matches(name)))
}

fn mark(forest: &Forest, word: &str, selected: &mut [bool]) -> Result<(), SelectError> {
    if let Some(named) = forest.named(word) {
        selected[named].fill(true);
        return Ok(());
    }
    let glob = Glob::parse(word).map_err(|(_, why)| SelectError::BadGlob { word: word.to_owned(), why })?;
    let mut found = false;
    for (node, selected) in forest.nodes.iter().zip(selected) {
        if glob.matches(node.name.as_str()) {
            *selected = true;
            found = true;
        }
    }
    if found {
        return Ok(());
    }
    Err(no_match(forest, word))
}

fn no_match(forest: &Forest, word: &str) -> SelectError {
    let known = forest.nodes.iter().map(|node| node.name.as_str());
    SelectError::NoMatch { word: word.to_owned(), candidates: candidates(word, known) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_to_mean_a_node_that_is_known() {
        let check = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|word| (*word).to_owned()).collect();
            check_known(&only, ["web-1", "web-2", "db"].into_iter())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["web-*", "db, web-1"]), Ok(()));
        assert!(matches!(check(&["db,wbe-1"]), Err(SelectError::Unknown { word, candidates })
            if word == "wbe-1" && candidates == ["web-1"]));
        assert!(matches!(check(&[","]), Err(SelectError::Unknown { .. })));
        assert!(matches!(check(&["[a"]), Err(SelectError::BadGlob { .. })));
    }
}
