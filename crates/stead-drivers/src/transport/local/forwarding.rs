//! Forwards from this machine to itself: both directions are the same.

use stead_runner::transport::{Forward, Forwarded, TransportError};
use tokio::task::JoinSet;

use crate::transport::endpoint::{Listener, connect};

/// Listens and carries connections until the result is dropped.
pub(super) async fn forward(what: Forward) -> Result<Forwarded, TransportError> {
    let (Forward::Local { listen, to } | Forward::Remote { listen, to }) = what;
    let (listener, listen) = Listener::bind(&listen).await?;
    let mut listening = JoinSet::new();
    listening.spawn(async move {
        let mut carrying = JoinSet::new();
        while let Ok(mut near) = listener.accept().await {
            while carrying.try_join_next().is_some() {}
            let to = to.clone();
            carrying.spawn(async move {
                // What cannot be connected is closed, which is all a client can be told.
                if let Ok(mut far) = connect(&to).await {
                    tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
                }
            });
        }
    });
    Ok(Forwarded { listen, guard: Box::new(listening) })
}
