//! Requests of one TCP connection that wait for their replies.

use std::collections::VecDeque;

use super::samples::LIMIT_MICROS;

/// How many requests of one connection may be open; beyond, the oldest is given up.
const MOST_OPEN: usize = 4_096;
/// How many may be open over all connections.
const MOST_OPEN_TOGETHER: usize = 262_144;
/// Above this an empty queue's memory is given back.
const KEPT_CAPACITY: usize = 64;

/// What ties a reply to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Unconnected: the sender's context.
    Context([u8; 8]),
    /// Connected: the sequence count.
    Sequence(u16),
}

/// A request without a reply so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenRequest {
    pub(crate) time: i64,
    pub(crate) session: u32,
    pub(crate) token: Token,
    pub(crate) service: u8,
    pub(crate) class: u16,
    /// Service and class of the request passed on inside, whose reply comes back in its stead.
    pub(crate) inner: Option<(u8, u16)>,
}

/// A request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// From request to reply.
    pub(crate) micros: i64,
    /// The class asked.
    pub(crate) class: u16,
}

/// Totals over all connections.
#[derive(Debug, Default)]
pub(crate) struct OpenTotals {
    open: usize,
    pub(crate) unanswered: u64,
}

/// The open requests of one connection, oldest first.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    queue: VecDeque<OpenRequest>,
}

impl OpenRequests {
    /// Adds a request.
    pub(crate) fn ask(&mut self, request: OpenRequest, totals: &mut OpenTotals) {
        self.expire(request.time, totals);
        if self.queue.len() >= MOST_OPEN || totals.open >= MOST_OPEN_TOGETHER {
            totals.unanswered += 1;
            if self.queue.pop_front().is_none() {
                return;
            }
            totals.open -= 1;
        }
        self.queue.push_back(request);
        totals.open += 1;
    }

    /// Takes out the oldest request that a reply of `service` at `time` belongs to.
    pub(crate) fn answer(
        &mut self,
        time: i64,
        session: u32,
        token: Token,
        service: u8,
        totals: &mut OpenTotals,
    ) -> Option<Answered> {
        self.expire(time, totals);
        let class_of = |request: &OpenRequest| {
            if request.session != session || request.token != token {
                return None;
            }
            let inner = request.inner.filter(|(inner, _)| *inner == service);
            if request.service == service { Some(request.class) } else { inner.map(|(_, class)| class) }
        };
        let found = self.queue.iter().position(|request| class_of(request).is_some())?;
        let request = self.queue.remove(found)?;
        totals.open -= 1;
        self.give_back();
        Some(Answered { micros: time - request.time, class: class_of(&request)? })
    }

    /// Gives up all: the connection or the capture is over.
    pub(crate) fn close(&mut self, totals: &mut OpenTotals) {
        totals.open -= self.queue.len();
        totals.unanswered += self.queue.len() as u64;
        self.queue = VecDeque::new();
    }

    fn expire(&mut self, now: i64, totals: &mut OpenTotals) {
        while self.queue.front().is_some_and(|oldest| now - oldest.time >= LIMIT_MICROS) {
            self.queue.pop_front();
            totals.open -= 1;
            totals.unanswered += 1;
        }
        self.give_back();
    }

    fn give_back(&mut self) {
        if self.queue.is_empty() && self.queue.capacity() > KEPT_CAPACITY {
            self.queue = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(time: i64, context: u8, service: u8) -> OpenRequest {
        let token = Token::Context([context; 8]);
        OpenRequest { time, session: 7, token, service, class: 4, inner: None }
    }

    #[test]
    fn a_reply_belongs_to_the_oldest_request_that_matches() {
        let (mut open, mut totals) = (OpenRequests::default(), OpenTotals::default());
        for (time, context) in [(0, 1), (10, 2), (20, 1)] {
            open.ask(request(time, context, 0x0e), &mut totals);
        }
        let mut answer = |time, session, context, service| {
            let token = Token::Context([context; 8]);
            open.answer(time, session, token, service, &mut totals).map(|answered| answered.micros)
        };
        assert_eq!(answer(30, 8, 1, 0x0e), None);
        assert_eq!(answer(30, 7, 1, 0x01), None);
        assert_eq!(answer(30, 7, 2, 0x0e), Some(20));
        assert_eq!(answer(31, 7, 1, 0x0e), Some(31));
        assert_eq!(answer(32, 7, 1, 0x0e), Some(12));
        assert_eq!(answer(33, 7, 1, 0x0e), None);
        assert_eq!((totals.open, totals.unanswered), (0, 0));
    }

    #[test]
    fn what_was_passed_on_is_answered_in_its_own_name() {
        let (mut open, mut totals) = (OpenRequests::default(), OpenTotals::default());
        let inner = Some((0x4c, 0x6b));
        open.ask(OpenRequest { class: 6, inner, ..request(0, 1, 0x52) }, &mut totals);
        let answered = open.answer(5, 7, Token::Context([1; 8]), 0x4c, &mut totals);
        assert_eq!(answered, Some(Answered { micros: 5, class: 0x6b }));
    }

    #[test]
    fn requests_expire_and_are_bounded() {
        let (mut open, mut totals) = (OpenRequests::default(), OpenTotals::default());
        for _ in 0..MOST_OPEN + 3 {
            open.ask(request(0, 1, 0x0e), &mut totals);
        }
        assert_eq!((totals.open, totals.unanswered), (MOST_OPEN, 3));
        assert_eq!(open.answer(LIMIT_MICROS, 7, Token::Context([1; 8]), 0x0e, &mut totals), None);
        assert_eq!((totals.open, totals.unanswered), (0, MOST_OPEN as u64 + 3));
    }
}
