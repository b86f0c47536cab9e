//! The program behind `ci/fuzz`, `ci/secrets` and `ci/soak`.
#![cfg_attr(stead_fuzz, no_main)]

#[cfg(stead_fuzz)]
mod guided {
    //! One target, `STEAD_FUZZ_TARGET`, with inputs that libFuzzer makes.

    use std::sync::OnceLock;

    use stead_hardening::targets::{Target, named};

    static TARGET: OnceLock<&'static Target> = OnceLock::new();

    libfuzzer_sys::fuzz_target!(
        init: {
            let name = std::env::var_os("STEAD_FUZZ_TARGET").unwrap_or_default();
            let target = name.to_str().and_then(named).expect("STEAD_FUZZ_TARGET names a target");
            TARGET.get_or_init(|| target);
        },
        |bytes: &[u8]| {
            (TARGET.get().expect("the target is known from the start").run)(bytes);
        }
    );
}

#[cfg(not(stead_fuzz))]
fn main() -> std::process::ExitCode {
    stead_hardening::command::run(&std::env::args().skip(1).collect::<Vec<_>>())
}
