//! From frames to counts: what is asked, what is answered, how long it takes, and who answers.

use super::bytes::ByteOrder;
use super::cip::{self, Carried, Reply, Request};
use super::connections::{Conversation, PortRoles, Side};
use super::enip::{
    CONNECTED_ADDRESS, CONNECTED_DATA, Command, Header, IDENTITY, Items, SEQUENCED_ADDRESS, UNCONNECTED_DATA,
};
use super::exchange::{OpenRequest, OpenTotals, Token};
use super::io_flows::{Expected, FlowKey, IoFlows};
use super::packet::Endpoint;
use super::samples::Samples;
use super::summary::{Cip, Enip, Identity, Io, Latency};
use super::tally::{PathTally, ServiceKey, ServiceTally};

/// The class of objects that say who a device is, and the service that asks them for everything.
const IDENTITY_CLASS: u16 = 1;
const GET_ATTRIBUTES_ALL: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Request,
    Response,
}

/// A message and where it stands.
struct Message<'a> {
    direction: Direction,
    order: ByteOrder,
    session: u32,
    token: Token,
    bytes: &'a [u8],
    time: i64,
}

/// Counts the frames of a capture.
#[derive(Debug)]
pub(crate) struct Decoder {
    enip: Enip,
    commands: [u64; Command::ALL.len()],
    cip: Cip,
    services: ServiceTally,
    embedded: ServiceTally,
    paths: PathTally,
    status: Box<[u64; 256]>,
    latency: Samples,
    open: OpenTotals,
    io: IoFlows,
    identity: Option<Identity>,
}

/// What a decoder found.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) enip: Enip,
    pub(crate) cip: Cip,
    pub(crate) latency: Latency,
    pub(crate) io: Io,
    pub(crate) identity: Option<Identity>,
}

impl Decoder {
    /// Returns a decoder that has seen nothing.
    pub(crate) fn new(expected: Expected) -> Self {
        Self {
            enip: Enip::default(),
            commands: [0; Command::ALL.len()],
            cip: Cip::default(),
            services: ServiceTally::default(),
            embedded: ServiceTally::default(),
            paths: PathTally::default(),
            status: Box::new([0; 256]),
            latency: Samples::default(),
            open: OpenTotals::default(),
            io: IoFlows::new(expected),
            identity: None,
        }
    }

    /// Returns the totals of requests that wait.
    pub(crate) fn open_totals(&mut self) -> &mut OpenTotals {
        &mut self.open
    }

    /// Takes a frame of a TCP connection that `sender` completed at `time`.
    pub(crate) fn frame(
        &mut self,
        conversation: &mut Conversation,
        sender: Side,
        header: Header,
        body: &[u8],
        time: i64,
    ) {
        let items = self.items(header, body);
        let order = header.order;
        let message = |kind: u16, data: &'_ [u8]| match kind {
            UNCONNECTED_DATA => Some((Token::Context(header.context), 0)),
            CONNECTED_DATA => order.u16(data, 0).map(|count| (Token::Sequence(count), 2)),
            _ => None,
        };
        let replies = || {
            items.into_iter().flatten().any(|item| {
                let bytes = message(item.kind, item.data).and_then(|(_, at)| item.data.get(at..));
                bytes.is_some_and(cip::has_reply_bit)
            })
        };
        let direction = match conversation.is_client(sender) {
            Some(true) => Direction::Request,
            Some(false) => Direction::Response,
            None if replies() => {
                conversation.saw_reply_of(sender);
                Direction::Response
            }
            None => Direction::Request,
        };
        self.count_direction(direction);
        for item in items.into_iter().flatten() {
            if let Some((token, at)) = message(item.kind, item.data) {
                let bytes = item.data.get(at..).unwrap_or_default();
                let message = Message { direction, order, session: header.session, token, bytes, time };
                self.message(message, Some(conversation));
            } else if item.kind == CONNECTED_DATA {
                self.cip.malformed += 1;
            }
        }
    }

    /// Takes a UDP datagram: a frame, or the items of cyclic data alone.
    pub(crate) fn datagram(
        &mut self,
        source: Endpoint,
        destination: Endpoint,
        payload: &[u8],
        time: i64,
        roles: PortRoles,
    ) {
        let Some((header, body)) = datagram_frame(payload) else {
            let items = Items::of_list(ByteOrder::Little, payload).filter(|items| items.is_whole());
            match items.and_then(cyclic) {
                Some(connection_id) => self.io.add(FlowKey { source, destination, connection_id }, time),
                None => self.enip.resync_bytes += payload.len() as u64,
            }
            return;
        };
        let items = self.items(header, body);
        let unconnected = || items.into_iter().flatten().filter(|item| item.kind == UNCONNECTED_DATA);
        let direction = match roles {
            PortRoles::SenderIsClient => Direction::Request,
            PortRoles::SenderIsServer => Direction::Response,
            PortRoles::Unknown if unconnected().any(|item| cip::has_reply_bit(item.data)) => {
                Direction::Response
            }
            PortRoles::Unknown => Direction::Request,
        };
        self.count_direction(direction);
        if let Some(connection_id) = items.and_then(cyclic) {
            self.io.add(FlowKey { source, destination, connection_id }, time);
        }
        for item in unconnected() {
            let (order, session, token) = (header.order, header.session, Token::Context(header.context));
            self.message(Message { direction, order, session, token, bytes: item.data, time }, None);
        }
    }

    /// Returns what was found; `resync_bytes` are those of TCP streams.
    pub(crate) fn finish(self, resync_bytes: u64) -> Decoded {
        let commands = Command::ALL.iter().zip(self.commands).filter(|(_, count)| *count > 0);
        let status = self.status.iter().enumerate().filter(|(_, count)| **count > 0);
        Decoded {
            enip: Enip {
                commands: commands.map(|(command, count)| (command.name().to_owned(), count)).collect(),
                resync_bytes: self.enip.resync_bytes + resync_bytes,
                ..self.enip
            },
            cip: Cip {
                services: self.services.counts(),
                classes: self.services.classes(),
                status: status.map(|(code, count)| (format!("0x{code:02X}"), *count)).collect(),
                embedded: self.embedded.counts(),
                unknown_services: self.services.unknown(),
                paths_top: self.paths.top(),
                ..self.cip
            },
            latency: Latency {
                count: self.latency.count(),
                min: self.latency.min(),
                max: self.latency.percentile(100),
                mean: self.latency.mean(),
                p50: self.latency.percentile(50),
                p90: self.latency.percentile(90),
                p95: self.latency.percentile(95),
                p99: self.latency.percentile(99),
                unanswered: self.open.unanswered,
            },
            io: self.io.finish(),
            identity: self.identity,
        }
    }

    /// Counts a frame and returns the items of its message, if it is one that has any.
    fn items<'a>(&mut self, header: Header, body: &'a [u8]) -> Option<Items<'a>> {
        self.enip.frames += 1;
        self.commands[header.command as usize] += 1;
        match header.command {
            Command::SendRrData | Command::SendUnitData => {
                // An error is told by the header alone.
                if body.is_empty() && header.status != 0 {
                    return None;
                }
                let items = Items::of_message(header.order, body);
                self.cip.malformed += u64::from(!items.is_some_and(Items::is_whole));
                items
            }
            Command::ListIdentity => {
                let mut items = Items::of_list(header.order, body).into_iter().flatten();
                let identity = items.find(|item| item.kind == IDENTITY);
                // Behind a version and a socket address.
                self.learn_identity(header.order, identity.and_then(|item| item.data.get(18..)));
                None
            }
            Command::ListServices
            | Command::ListInterfaces
            | Command::RegisterSession
            | Command::UnregisterSession => None,
        }
    }

    fn count_direction(&mut self, direction: Direction) {
        match direction {
            Direction::Request => self.enip.requests += 1,
            Direction::Response => self.enip.responses += 1,
        }
    }

    fn message(&mut self, message: Message<'_>, conversation: Option<&mut Conversation>) {
        // A sequence count alone keeps a connection alive.
        if message.bytes.is_empty() && matches!(message.token, Token::Sequence(_)) {
            return;
        }
        let understood = match message.direction {
            Direction::Request => self.request(&message, conversation),
            Direction::Response => self.reply(&message, conversation),
        };
        match (understood, message.direction) {
            (None, _) => self.cip.malformed += 1,
            (Some(()), Direction::Request) => self.cip.requests += 1,
            (Some(()), Direction::Response) => self.cip.responses += 1,
        }
        self.cip.messages += u64::from(understood.is_some());
    }

    fn request(&mut self, message: &Message<'_>, conversation: Option<&mut Conversation>) -> Option<()> {
        let request = Request::parse(message.order, message.bytes)?;
        let Request { service, class, .. } = request;
        self.services.add(ServiceKey { service, class, response: false }, Some(class));
        self.paths.add(request.path);
        let inner = self.carried_requests(message.order, request);
        if let Some(conversation) = conversation {
            let (time, session, token) = (message.time, message.session, message.token);
            let open = OpenRequest { time, session, token, service, class, inner };
            conversation.open.ask(open, &mut self.open);
        }
        Some(())
    }

    /// Counts what `request` carries; returns service and class of what it has passed on.
    fn carried_requests(&mut self, order: ByteOrder, request: Request<'_>) -> Option<(u8, u16)> {
        let (list, passed_on) = match request.passed_on(order) {
            Carried::One(inner) => {
                self.count_embedded_request(inner);
                (inner, Some((inner.service, inner.class)))
            }
            Carried::Nothing => (request, None),
            Carried::Malformed => {
                self.cip.malformed += 1;
                return None;
            }
        };
        if list.is_list() {
            let Some(messages) = cip::listed(order, list.data) else {
                self.cip.malformed += 1;
                return passed_on;
            };
            for message in messages {
                match Request::parse(order, message) {
                    Some(request) => self.count_embedded_request(request),
                    None => self.cip.malformed += 1,
                }
            }
        }
        passed_on
    }

    fn count_embedded_request(&mut self, request: Request<'_>) {
        let Request { service, class, .. } = request;
        self.embedded.add(ServiceKey { service, class, response: false }, Some(class));
    }

    fn reply(&mut self, message: &Message<'_>, conversation: Option<&mut Conversation>) -> Option<()> {
        let reply = Reply::parse(message.bytes)?;
        let answered = conversation.and_then(|conversation| {
            let Message { time, session, token, .. } = *message;
            conversation.open.answer(time, session, token, reply.service, &mut self.open)
        });
        if let Some(answered) = answered {
            self.latency.record(answered.micros);
        }
        let class = answered.map(|answered| answered.class);
        self.services.add(ServiceKey { service: reply.service, class: 0, response: true }, class);
        self.status[usize::from(reply.status)] += 1;
        if reply.is_list() {
            self.listed_replies(message.order, reply);
        }
        if class == Some(IDENTITY_CLASS) && reply.service == GET_ATTRIBUTES_ALL && reply.status == 0 {
            self.learn_identity(message.order, Some(reply.data));
        }
        Some(())
    }

    fn listed_replies(&mut self, order: ByteOrder, reply: Reply<'_>) {
        let Some(messages) = cip::listed(order, reply.data) else {
            self.cip.malformed += 1;
            return;
        };
        for message in messages {
            match Reply::parse(message) {
                Some(Reply { service, .. }) => {
                    self.embedded.add(ServiceKey { service, class: 0, response: true }, None);
                }
                None => self.cip.malformed += 1,
            }
        }
    }

    /// Takes the attributes of an identity: vendor, type, product, revision, status, serial number, name.
    fn learn_identity(&mut self, order: ByteOrder, attributes: Option<&[u8]>) {
        let identity = attributes.and_then(|attributes| {
            let len = usize::from(*attributes.get(14)?);
            let name = attributes.get(15..15 + len)?;
            let product_name = String::from_utf8_lossy(name).into_owned();
            Some(Identity { vendor_id: order.u16(attributes, 0)?, product_name })
        });
        self.identity = self.identity.take().or(identity);
    }
}

/// Returns the frame that a datagram is, as a whole.
fn datagram_frame(payload: &[u8]) -> Option<(Header, &[u8])> {
    let big = || Header::parse(ByteOrder::Big, payload).filter(|header| header.is_plausible());
    let header = Header::parse(ByteOrder::Little, payload).or_else(big)?;
    Some((header, payload.get(super::enip::HEADER..header.frame_len())?))
}

/// Returns the connection id of items that are cyclic data; 0 if they name none.
fn cyclic(items: Items<'_>) -> Option<u32> {
    let mut connection_id = None;
    let mut data = false;
    for item in items {
        match item.kind {
            SEQUENCED_ADDRESS | CONNECTED_ADDRESS => connection_id = ByteOrder::Little.u32(item.data, 0),
            CONNECTED_DATA => data = true,
            _ => {}
        }
    }
    data.then(|| connection_id.unwrap_or(0))
}
