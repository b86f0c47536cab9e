//! A small site brought into place: directories, a page, a setting, an undo, a check that it is there.
//!
//! Run it with `cargo run -p stead --example webserver`, twice: the second run finds nothing to do. It writes below
//! the directory given as argument, by default `stead-webserver` in the temporary directory.

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::path::PathBuf;

use stead::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Diagnostics> {
    let root = std::env::args_os()
        .nth(1)
        .map_or_else(|| std::env::temp_dir().join("stead-webserver"), PathBuf::from);
    let at = |name: &str| root.join(name).display().to_string();

    let mut plan = Plan::builder("webserver");
    plan.on_error(OnError::StopAll)
        .on_failure(OnFailure::Rollback)
        .limits(Limits { parallel: 16, ..Limits::default() });

    let site = plan
        .op("site", Op::new("file.directory").param("path", at("htdocs")).param("parents", true))
        .undo_auto()
        .handle();
    let page = plan
        .op(
            "page",
            Op::new("file.present")
                .param("path", at("htdocs/index.html"))
                .param("content", "<h1>It stands</h1>\n"),
        )
        .after(site)
        .undo_auto()
        .handle();
    let port = plan
        .op(
            "port",
            Op::new("file.line")
                .param("path", at("server.conf"))
                .param("line", "port = 8080")
                .param("match", "^port")
                .param("create", true),
        )
        .after(site)
        .undo_auto()
        .handle();
    plan.op("restart", Op::shell("echo the server would restart now").param("cwd", at("")))
        .after((page, port))
        .only_if_changed()
        .mutex("server");
    plan.func("verify", {
        let page = at("htdocs/index.html");
        move |_| {
            let page = page.clone();
            async move { Ok(Done::unchanged(std::fs::read_to_string(page)?.len())) }
        }
    })
    .after((page, port))
    .idempotent();

    let report = Runner::new(Drivers::standard())
        .record_in(root.join(".stead"))
        .observe(Terminal::auto())
        .run(plan.build()?)
        .await;
    println!("{}", report.summary());
    if let Some(bundle) = &report.bundle {
        println!("recorded in {bundle}");
    }
    Ok(())
}
