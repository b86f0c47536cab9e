//! Runs a prepared run to its end, with signals connected.

use std::convert::Infallible;

use stead_drivers::run::{RunStopper, StopWish};
use tokio::sync::watch;

use super::act::Ended;
use crate::failure::{Failure, FailureKind};
use crate::signals::{self, Signals};

/// Returns what `run` gives; signals go to `stopper`.
pub(crate) fn drive(
    stopper: RunStopper,
    run: impl Future<Output = Result<Ended, Failure>>,
) -> Result<Ended, Failure> {
    let internal = |error: std::io::Error| Failure::caused_by(FailureKind::Work, error);
    let signals = signals::listen().map_err(internal)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(internal)?;
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = run => ended,
            never = forward(signals, stopper) => match never {},
        }
    });
    runtime.shutdown_background();
    ended
}

/// Tells the run of every signal.
async fn forward(mut signals: watch::Receiver<Signals>, stopper: RunStopper) -> Infallible {
    let mut told = 0;
    while signals.changed().await.is_ok() {
        let Signals { count, hung_up } = *signals.borrow_and_update();
        for _ in told..count {
            stopper.stop(if hung_up { StopWish::HangUp } else { StopWish::End });
        }
        told = count;
    }
    std::future::pending().await
}
