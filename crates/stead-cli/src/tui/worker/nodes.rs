//! Looks at nodes by the same functions as `stead status` and the page.

use super::Surroundings;
use crate::args::StatusArgs;
use crate::commands::nodes::report::{self, NodePlace};
use crate::commands::nodes::status;
use crate::tui::nodes::Seen;
use crate::tui::state::Message;
use crate::tui::trouble::Trouble;

/// Looks at the nodes of the site.
pub(super) fn look(work: &Surroundings) {
    let args = StatusArgs { site: work.args.site.clone(), ..StatusArgs::default() };
    let seen = status::document(&args, &work.settings).map(|document| Seen::of(&document));
    work.send(Message::Nodes(seen.map_err(|failure| Trouble::of(&failure))));
}

/// Asks the server of a node's level what its agent told.
pub(super) fn ask(work: &Surroundings, place: NodePlace) {
    let told = report::of_node(&work.args.site, &place, &work.settings);
    let told = told.map(|told| told.map(Box::new)).map_err(|failure| Trouble::of(&failure));
    work.send(Message::NodeTold { place, told });
}
