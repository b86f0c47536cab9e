//! The terminal's cursor: hidden while lines move, shown again on every way out.
//!
//! The state is the terminal's, so it is one for the process. [`restore`] may be called from anywhere
//! and any number of times: the live display's end, a panic, a signal that ends the process at once.

use std::io::Write as _;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use super::full_screen;

pub(crate) const HIDE: &str = "\x1b[?25l";
pub(crate) const SHOW: &str = "\x1b[?25h";

static HIDDEN: AtomicBool = AtomicBool::new(false);

/// Remembers for [`restore`] whether the cursor is hidden.
pub(crate) fn note(hidden: bool) {
    HIDDEN.store(hidden, Ordering::SeqCst);
}

/// Shows the cursor on standard error if it is hidden, and gives a whole screen back.
pub fn restore() {
    full_screen::give_back();
    if HIDDEN.swap(false, Ordering::SeqCst) {
        let mut stderr = std::io::stderr();
        // Nothing can be done about a terminal that went away.
        drop(stderr.write_all(SHOW.as_bytes()).and_then(|()| stderr.flush()));
    }
}

/// Makes every panic show the cursor before its message is printed. Calling it again does nothing.
pub fn restore_on_panic() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Whoever draws the whole screen goes on and tells of a thread that ended; its words would only be in the way.
            if full_screen::is_drawn_elsewhere() {
                return;
            }
            restore();
            print(panic);
        }));
    });
}
