//! The `stead` command: everything happens in the library of this crate.

fn main() -> std::process::ExitCode {
    stead_cli::main()
}
