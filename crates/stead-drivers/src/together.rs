//! Several waits at once, in one task: what they borrow need not be shared.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::Poll;

/// As many go on at once: enough that nobody waits for a slow machine, and so few that each turn stays short.
const AT_ONCE: usize = 128;

/// Waits for all of `futures`, many of them at once, and returns what they give, in their order.
pub(crate) async fn all_of<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: VecDeque<_> = futures.into_iter().map(Box::pin).enumerate().collect();
    let mut open: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    let mut done: Vec<(usize, F::Output)> = Vec::new();
    std::future::poll_fn(|cx| {
        // Who ends makes room for another, which is asked in the same turn.
        loop {
            let room = AT_ONCE - open.len();
            open.extend(waiting.drain(..room.min(waiting.len())));
            let asked = open.len();
            open.retain_mut(|(index, future)| match future.as_mut().poll(cx) {
                Poll::Ready(output) => {
                    done.push((*index, output));
                    false
                }
                Poll::Pending => true,
            });
            if asked == 0 {
                return Poll::Ready(());
            }
            if open.len() == asked {
                return Poll::Pending;
            }
        }
    })
    .await;
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, output)| output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn many_go_on_at_once_but_not_all_and_their_order_stays() {
        let (now, most) = (Cell::new(0), Cell::new(0));
        let one = |number: usize| {
            let (now, most) = (&now, &most);
            async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                for _ in 0..number % 7 {
                    tokio::task::yield_now().await;
                }
                now.set(now.get() - 1);
                number
            }
        };
        assert_eq!(all_of((0..1000).map(one)).await, (0..1000).collect::<Vec<_>>());
        assert!((2..=AT_ONCE).contains(&most.get()), "{}", most.get());
        assert_eq!(all_of(std::iter::empty::<std::future::Ready<()>>()).await, []);
    }

    #[tokio::test]
    async fn one_may_wait_for_another() {
        let (tell, told) = tokio::sync::oneshot::channel();
        let (mut tell, mut told) = (Some(tell), Some(told));
        let futures = (0..2).map(|number| {
            let (told, tell) = if number == 0 { (told.take(), None) } else { (None, tell.take()) };
            async move {
                if let Some(told) = told {
                    return told.await.unwrap_or(0);
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                tell.into_iter().for_each(|tell| tell.send(7).unwrap());
                number
            }
        });
        assert_eq!(all_of(futures.collect::<Vec<_>>()).await, [7, 1]);
    }
}
