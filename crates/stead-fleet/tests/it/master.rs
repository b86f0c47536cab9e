//! Masters, as who calls them sees them.

mod cases;
mod killed;
mod observed;
mod rebuilt;
mod services;
mod several;
mod yard;
