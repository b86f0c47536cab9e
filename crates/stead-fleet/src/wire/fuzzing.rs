//! Messages of any bytes, read as a master and a worker read them; for those who try readers.

use capnp::message::{Builder, HeapAllocator};
use capnp::serialize;

use super::convert::{
    read_assignment, read_desired, read_hello, read_observed, read_publications, read_verdicts,
    write_assignment, write_desired, write_hello, write_observed, write_verdicts,
};
use super::fleet_capnp::{assignment, desired, hello, observed, verdict};
use super::{MAX_WORKER_MESSAGE, reader_options};

/// Reads `bytes` as the message that the first letter names, writes what was read and reads that. Returns whether it is the
/// same; also if nothing could be read.
pub fn messages(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return true };
    match kind {
        b'h' => survives(
            bytes,
            |from| read_hello(from.get_root::<hello::Reader<'_>>()?),
            |to, message| {
                write_hello(to.init_root::<hello::Builder<'_>>(), message);
            },
        ),
        b'd' => survives(
            bytes,
            |from| read_desired(from.get_root::<desired::Reader<'_>>()?),
            |to, message| {
                // What is wrong with it is told, whatever it is.
                drop(read_publications(message));
                write_desired(to.init_root::<desired::Builder<'_>>(), message);
            },
        ),
        b'a' => survives(
            bytes,
            |from| read_assignment(from.get_root::<assignment::Reader<'_>>()?),
            |to, message| {
                drop(message.clone().into_assignment());
                write_assignment(to.init_root::<assignment::Builder<'_>>(), message);
            },
        ),
        b'o' => survives(
            bytes,
            |from| read_observed(from.get_root::<observed::Reader<'_>>()?),
            |to, message| {
                write_observed(to.init_root::<observed::Builder<'_>>(), message);
            },
        ),
        b'v' => survives(
            bytes,
            |from| read_verdicts(from.get_root::<verdict::Reader<'_>>()?),
            |to, message| {
                if let Ok(message) = message {
                    write_verdicts(to.init_root::<verdict::Builder<'_>>(), message);
                }
            },
        ),
        _ => true,
    }
}

type Received<'a> = capnp::message::Reader<serialize::BufferSegments<&'a [u8]>>;

fn survives<T: PartialEq>(
    bytes: &[u8],
    read: impl Fn(&Received<'_>) -> capnp::Result<T>,
    write: impl FnOnce(&mut Builder<HeapAllocator>, &T),
) -> bool {
    let options = reader_options(MAX_WORKER_MESSAGE);
    let segments = serialize::BufferSegments::new(bytes, options);
    let Ok(message) = segments.map(|segments| Received::new(segments, options)) else { return true };
    let Ok(first) = read(&message) else { return true };
    let mut written = Builder::new_default();
    write(&mut written, &first);
    let written = serialize::write_message_to_words(&written);
    let segments = serialize::BufferSegments::new(written.as_slice(), options);
    let again = segments.map(|segments| Received::new(segments, options)).and_then(|message| read(&message));
    again.is_ok_and(|again| again == first)
}
