//! What every transport must do: one suite, run by the tests of each.
//!
//! [`verify`] takes an open transport and a directory of the machine it leads to. Each part panics with what is not as
//! promised. The machine is this one, whatever lies between, so the suite looks at the other side directly.

mod files;
mod programs;

use std::path::Path;
use std::sync::Arc;

use stead_runner::transport::{Command, Exit, Running, Transport};
use tokio::io::AsyncReadExt;

/// Runs the whole suite.
///
/// # Panics
/// If the transport breaks a promise.
pub async fn verify(transport: Arc<dyn Transport>, directory: &Path) {
    programs::bytes_reach_the_program(&*transport).await;
    programs::the_environment_is_added_or_alone(&*transport).await;
    programs::the_directory_is_entered_or_named(&*transport, directory).await;
    programs::exits_are_exact(&*transport).await;
    programs::a_missing_program_is_127(&*transport).await;
    programs::input_is_piped_and_output_comes_at_once(&*transport).await;
    programs::signals_reach_the_group(&*transport, directory).await;
    programs::dropping_kills_the_group(&*transport, directory).await;
    programs::nothing_is_cut(&*transport).await;
    programs::an_unread_program_holds_up_nothing(&transport).await;
    programs::what_cannot_be_is_refused(&*transport).await;
    files::files_go_there_and_back(&*transport, directory).await;
    files::the_same_file_again_writes_nothing(&*transport, directory).await;
    files::mode_and_owner_are_as_asked_or_kept(&*transport, directory).await;
    files::what_is_wrong_is_named(&*transport, directory).await;
    files::connections_are_carried(&*transport, directory).await;
}

/// What a finished program was.
#[derive(Debug)]
struct Finished {
    exit: Exit,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

async fn finish(mut running: Running) -> Finished {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    drop(running.stdin.take());
    let (out, err) =
        tokio::join!(running.stdout.read_to_end(&mut stdout), running.stderr.read_to_end(&mut stderr));
    out.expect("stdout");
    err.expect("stderr");
    Finished { exit: running.process.wait().await.expect("an exit"), stdout, stderr }
}

async fn run(transport: &dyn Transport, command: Command) -> Finished {
    finish(transport.exec(command).await.expect("a start")).await
}

fn shell(script: &str) -> Command {
    Command::new(["sh", "-c", script])
}
