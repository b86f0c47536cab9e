//! What people see of Stead in a browser: one page without anything from elsewhere, and the runs it shows. Nothing can be
//! changed by it.
//!
//! ```text
//!  stead ui ────────────▶ serve ──┐                      ┌──▶ Desk: records of runs, and their events as they come
//!  stead server, /ui ─────────────┼──▶ Asked ──▶ Shown ──┤
//!  stead fleet master, / ─────────┘                      └──▶ what the door itself knows: nodes, jobs, the fleet
//! ```
//!
//! Every door serves the same [`page`], which asks [`Asked::About`] for the views that it can show.

mod asked;
mod body;
mod desk;
mod follow;
mod page;
mod serve;
mod shown;

pub use asked::Asked;
pub use body::Body;
pub use desk::{Desk, is_held, status_of};
pub use follow::{Follow, Live};
pub use hyper::StatusCode;
pub use page::{Page, page};
pub use serve::{Door, Views, is_own_name, of_page, of_shown, of_shown_until, serve};
pub use shown::{Shown, Whole};
