//! A diamond of four tasks, two of them closures: values flow, a retry mends a failure, a guard decides.
//!
//! Run it with `cargo run -p stead --example simple`.

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::sync::atomic::{AtomicU32, Ordering};

use stead::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Diagnostics> {
    let mut plan = Plan::builder("simple");
    let host = plan.op("host", Op::exec("uname", ["-n"]).changed_when("false")).handle();

    // Fails once, then works.
    static TRIES: AtomicU32 = AtomicU32::new(0);
    let flaky = plan
        .func("flaky", |_| async {
            match TRIES.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Failure::new("not yet")),
                tries => Ok(Done::changed(tries)),
            }
        })
        .after(host)
        .retry(Retry::times(3).backoff(millis(100), secs(10)))
        .handle();
    let length = plan
        .func("length", move |cx| async move {
            let result: Value = cx.result(host)?;
            Ok(Done::unchanged(result["stdout"].as_str().unwrap_or_default().trim().len()))
        })
        .after(host)
        .handle();
    plan.op("tell", Op::exec("echo", ["something changed"]).changed_when("false"))
        .after((flaky, length))
        .only_if_changed()
        .when(Guard::changed(flaky));
    plan.finally_func("status", |cx| async move { Ok(Done::unchanged(cx.run().status())) });

    let report = Runner::new(Drivers::standard()).observe(Terminal::auto()).run(plan.build()?).await;
    println!("{}", report.summary());
    for task in report.tasks() {
        println!("{}: {} (changed={}, duration={:?})", task.name, task.status, task.changed, task.duration);
    }
    if let Ok(length) = report.value(length) {
        println!("the host's name has {length} letters");
    }
    Ok(())
}
