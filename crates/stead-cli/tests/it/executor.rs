//! Operations on other machines: the executor, what it survives and what it leaves (reach.md, section 3).

mod direct;
mod sessions;
