//! The TCP connections of a capture: which there are, who is the client, and their two streams.

use std::collections::HashMap;

use super::decoder::Decoder;
use super::exchange::OpenRequests;
use super::packet::{Endpoint, Segment};
use super::stream::{Stream, StreamTotals};
use super::summary::Tcp;

/// How many connections are followed at once; then those quiet for longest are given up.
const MOST_CONNECTIONS: usize = 65_536;
/// How much all streams may hold together.
const MOST_HELD: usize = 64 * 1024 * 1024;

/// One of the two ends of a connection, in the order of their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Low,
    High,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Low => Self::High,
            Self::High => Self::Low,
        }
    }
}

/// What decoding knows and keeps about a connection.
#[derive(Debug)]
pub(crate) struct Conversation {
    client: Option<Side>,
    pub(crate) open: OpenRequests,
}

impl Conversation {
    /// Returns whether `sender` is the client, if that is known.
    pub(crate) fn is_client(&self, sender: Side) -> Option<bool> {
        self.client.map(|client| client == sender)
    }

    /// Learns from a reply that `sender` is the server, unless it is known who is the client.
    pub(crate) fn saw_reply_of(&mut self, sender: Side) {
        self.client.get_or_insert(sender.other());
    }
}

#[derive(Debug)]
struct Connection {
    low: Stream,
    high: Stream,
    conversation: Conversation,
    last_seen: i64,
}

type Ends = (Endpoint, Endpoint);

/// Who the ports say is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortRoles {
    /// The sender of this segment.
    SenderIsClient,
    /// The receiver of this segment.
    SenderIsServer,
    /// Both ports are listed.
    Unknown,
}

/// The connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_ends: HashMap<Ends, Connection>,
    held: usize,
    totals: StreamTotals,
}

impl Connections {
    /// Takes a segment from `source` to `destination` seen at `time`.
    pub(crate) fn take(
        &mut self,
        source: Endpoint,
        destination: Endpoint,
        segment: Segment<'_>,
        time: i64,
        roles: PortRoles,
        decoder: &mut Decoder,
    ) {
        let (ends, sender) = if source <= destination {
            ((source, destination), Side::Low)
        } else {
            ((destination, source), Side::High)
        };
        if self.by_ends.len() >= MOST_CONNECTIONS && !self.by_ends.contains_key(&ends) {
            self.give_up_quiet(decoder);
        }
        let Self { by_ends, held, totals } = self;
        let connection = by_ends.entry(ends).or_insert_with(|| {
            totals.tcp.flows += 1;
            Connection::new(time)
        });
        connection.last_seen = time.max(connection.last_seen);
        totals.tcp.resets += u64::from(segment.reset);
        let before = connection.held();
        if segment.syn {
            // The ends met before: what follows is another connection.
            if !segment.ack && connection.parts(sender).0.is_other_than(segment.sequence) {
                connection.close(totals, decoder);
                *connection = Connection::new(time);
                totals.tcp.flows += 1;
            }
            connection.parts(sender).0.begin(segment.sequence);
        }
        connection.learn_client(sender, segment, roles);
        connection.take(sender, segment, time, totals, decoder);
        *held = (*held + connection.held()).saturating_sub(before);
        if *held > MOST_HELD {
            let before = connection.held();
            connection.drop_held(totals, decoder);
            *held = (*held + connection.held()).saturating_sub(before);
        }
    }

    /// Gives up all connections: the capture is over. Returns the totals.
    pub(crate) fn finish(mut self, decoder: &mut Decoder) -> (Tcp, u64) {
        // In one order always, since they share totals that have limits.
        let mut connections: Vec<(Ends, Connection)> = self.by_ends.drain().collect();
        connections.sort_unstable_by_key(|(ends, _)| *ends);
        for (_, mut connection) in connections {
            connection.close(&mut self.totals, decoder);
        }
        (self.totals.tcp, self.totals.resync_bytes)
    }

    /// Makes room: gives up the quarter that has been quiet for longest.
    fn give_up_quiet(&mut self, decoder: &mut Decoder) {
        let mut ages: Vec<(i64, Ends)> =
            self.by_ends.iter().map(|(ends, connection)| (connection.last_seen, *ends)).collect();
        ages.sort_unstable();
        ages.truncate(MOST_CONNECTIONS / 4);
        for (_, ends) in ages {
            if let Some(mut connection) = self.by_ends.remove(&ends) {
                self.held = self.held.saturating_sub(connection.held());
                connection.close(&mut self.totals, decoder);
            }
        }
    }
}

impl Connection {
    fn new(time: i64) -> Self {
        let conversation = Conversation { client: None, open: OpenRequests::default() };
        Self { low: Stream::default(), high: Stream::default(), conversation, last_seen: time }
    }

    /// Returns the stream that `sender` fills, and what decoding it needs.
    fn parts(&mut self, sender: Side) -> (&mut Stream, &mut Conversation) {
        let stream = match sender {
            Side::Low => &mut self.low,
            Side::High => &mut self.high,
        };
        (stream, &mut self.conversation)
    }

    fn held(&self) -> usize {
        self.low.held() + self.high.held()
    }

    /// The ports decide; where they do not, the sender of the SYN is the client.
    fn learn_client(&mut self, sender: Side, segment: Segment<'_>, roles: PortRoles) {
        let client = match (roles, segment.syn, segment.ack) {
            (PortRoles::SenderIsClient, _, _) | (PortRoles::Unknown, true, false) => sender,
            (PortRoles::SenderIsServer, _, _) | (PortRoles::Unknown, true, true) => sender.other(),
            (PortRoles::Unknown, false, _) => return,
        };
        self.conversation.client = Some(client);
    }

    fn take(
        &mut self,
        sender: Side,
        segment: Segment<'_>,
        time: i64,
        totals: &mut StreamTotals,
        decoder: &mut Decoder,
    ) {
        // Replies behind a hole must be found before their requests expire, whoever speaks next.
        for side in [Side::Low, Side::High] {
            let (stream, conversation) = self.parts(side);
            stream.expire(time, totals, &mut |header, body, time| {
                decoder.frame(conversation, side, header, body, time);
            });
        }
        let (stream, conversation) = self.parts(sender);
        stream.take(segment, time, totals, &mut |header, body, time| {
            decoder.frame(conversation, sender, header, body, time);
        });
    }

    fn drop_held(&mut self, totals: &mut StreamTotals, decoder: &mut Decoder) {
        for side in [Side::Low, Side::High] {
            let (stream, conversation) = self.parts(side);
            stream.drop_held(totals, &mut |header, body, time| {
                decoder.frame(conversation, side, header, body, time);
            });
        }
    }

    fn close(&mut self, totals: &mut StreamTotals, decoder: &mut Decoder) {
        for side in [Side::Low, Side::High] {
            let (stream, conversation) = self.parts(side);
            stream.flush(totals, &mut |header, body, time| {
                decoder.frame(conversation, side, header, body, time);
            });
        }
        self.conversation.open.close(decoder.open_totals());
    }
}
