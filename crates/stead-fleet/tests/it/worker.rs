//! Workers with a master that tests play, real sandboxes and real processes.

mod bits;
mod care;
mod fenced;
mod figures;
mod guests;
mod killed;
mod life;
mod yard;
