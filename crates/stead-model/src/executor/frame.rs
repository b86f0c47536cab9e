//! Frames: length, kind, id, body.

/// Bytes before the body: length, kind and id.
pub const HEADER: usize = 9;
/// The smallest length a frame may state: kind and id without a body.
pub const SHORTEST: usize = 5;
/// The largest length a frame may state.
pub const LONGEST: usize = 16 << 20;

/// What a frame's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A JSON message.
    Json,
    /// Bytes that belong to the message before them on the same id.
    Bytes,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the body is.
    pub kind: FrameKind,
    /// What it belongs to; 0: the session itself.
    pub id: u32,
    /// The body.
    pub body: Vec<u8>,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stated length leaves no room for kind and id.
    #[error("a frame of {0} bytes is too short")]
    TooShort(usize),
    /// The stated length is over the limit.
    #[error("a frame of {0} bytes is longer than {LONGEST}")]
    TooLong(usize),
    /// Neither JSON nor bytes.
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
}

impl Frame {
    /// Appends a frame to `out`.
    ///
    /// # Errors
    /// If the body is too long; then nothing is appended.
    pub fn write(out: &mut Vec<u8>, kind: FrameKind, id: u32, body: &[u8]) -> Result<(), FrameError> {
        let length = SHORTEST + body.len();
        let stated = u32::try_from(length).ok().filter(|_| length <= LONGEST);
        let stated = stated.ok_or(FrameError::TooLong(length))?;
        out.reserve(HEADER + body.len());
        out.extend_from_slice(&stated.to_be_bytes());
        out.push(match kind {
            FrameKind::Json => 0,
            FrameKind::Bytes => 1,
        });
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(body);
        Ok(())
    }

    /// Returns the frame that `bytes` begin with and how many bytes it takes; nothing if more bytes are needed.
    ///
    /// # Errors
    /// If no bytes to come could make it a frame. The length is judged as soon as it is there.
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let Some((stated, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*stated)).unwrap_or(usize::MAX);
        if length < SHORTEST {
            return Err(FrameError::TooShort(length));
        }
        if length > LONGEST {
            return Err(FrameError::TooLong(length));
        }
        let kind = match rest.first() {
            None => return Ok(None),
            Some(0) => FrameKind::Json,
            Some(1) => FrameKind::Bytes,
            Some(other) => return Err(FrameError::UnknownKind(*other)),
        };
        let Some(frame) = rest.get(1..length) else { return Ok(None) };
        let Some((id, body)) = frame.split_first_chunk::<4>() else { return Ok(None) };
        Ok(Some((Self { kind, id: u32::from_be_bytes(*id), body: body.to_vec() }, 4 + length)))
    }
}

/// Bytes that arrive piece by piece, as frames.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Where the first byte is that no frame has taken.
    start: usize,
}

impl FrameBuffer {
    /// A buffer that grew beyond this for one large frame is given back.
    const KEPT: usize = 64 << 10;

    /// Adds what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns what is there and no frame yet.
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Forgets the first `count` bytes of the rest.
    pub fn skip(&mut self, count: usize) {
        self.start = (self.start + count).min(self.bytes.len());
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(Self::KEPT);
            self.start = 0;
        } else if self.start > Self::KEPT {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Returns the next frame, if it is whole.
    ///
    /// # Errors
    /// If what is there can never be one.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((frame, used)) = Frame::read(self.rest())? else { return Ok(None) };
        self.skip(used);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    /// Section 3: the numbers both sides go by.
    #[test]
    fn bounds_and_lease_are_the_contracts() {
        use crate::executor::{BANNER, LEASE, NOISE, PROTOCOL};
        assert_eq!((PROTOCOL, BANNER), (1, &b"STEAD-EXECUTOR 1\n"[..]));
        assert_eq!((SHORTEST, LONGEST, NOISE), (5, 16 * 1024 * 1024, 64 * 1024));
        assert_eq!(LEASE.as_secs(), 15);
    }

    /// Case 10.
    #[test]
    fn vectors_read_and_write_both_ways() {
        for (kind, id, body, text) in [
            (FrameKind::Json, 0, &b"{\"m\":\"beat\"}"[..], "0000001100000000007b226d223a2262656174227d"),
            (FrameKind::Bytes, 7, b"hi\n", "00000008010000000768690a"),
        ] {
            let mut out = Vec::new();
            Frame::write(&mut out, kind, id, body).unwrap();
            assert_eq!(out, hex(text));
            let (frame, used) = Frame::read(&out).unwrap().unwrap();
            assert_eq!((frame.kind, frame.id, &*frame.body, used), (kind, id, body, out.len()));
        }
    }

    /// Case 10.
    #[test]
    fn too_long_too_short_and_unknown_are_errors_and_a_cut_frame_waits() {
        let mut out = Vec::new();
        assert_eq!(
            Frame::write(&mut out, FrameKind::Bytes, 1, &vec![0; LONGEST - 4]),
            Err(FrameError::TooLong(LONGEST + 1))
        );
        assert!(out.is_empty());
        Frame::write(&mut out, FrameKind::Bytes, 1, &vec![0; LONGEST - SHORTEST]).unwrap();
        assert!(Frame::read(&out).unwrap().is_some());
        assert_eq!(Frame::read(&hex("01000001")), Err(FrameError::TooLong(LONGEST + 1)));
        assert_eq!(Frame::read(&hex("00000004")), Err(FrameError::TooShort(4)));
        assert_eq!(Frame::read(&hex("0000000802")), Err(FrameError::UnknownKind(2)));
        let whole = hex("00000008010000000768690a");
        for cut in 0..whole.len() {
            assert_eq!(Frame::read(&whole[..cut]), Ok(None), "{cut}");
        }
    }

    proptest! {
        /// Case 10.
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            if let Ok(Some((frame, used))) = Frame::read(&bytes) {
                prop_assert!(used <= bytes.len() && frame.body.len() + HEADER == used);
            }
        }

        #[test]
        fn frames_come_back_however_they_are_cut(bodies: Vec<Vec<u8>>, cut in 1usize..40) {
            let mut out = Vec::new();
            for (id, body) in (1..).zip(&bodies) {
                Frame::write(&mut out, FrameKind::Bytes, id, body).unwrap();
            }
            let (mut buffer, mut found) = (FrameBuffer::default(), Vec::new());
            for piece in out.chunks(cut) {
                buffer.push(piece);
                while let Some(frame) = buffer.next_frame().unwrap() {
                    found.push(frame.body);
                }
            }
            prop_assert_eq!(found, bodies);
        }

        #[test]
        fn frames_come_back_whatever_follows(id: u32, bytes: bool, body: Vec<u8>, more: Vec<u8>) {
            let kind = if bytes { FrameKind::Bytes } else { FrameKind::Json };
            let mut out = Vec::new();
            Frame::write(&mut out, kind, id, &body).unwrap();
            let length = out.len();
            out.extend_from_slice(&more);
            prop_assert_eq!(Frame::read(&out), Ok(Some((Frame { kind, id, body }, length))));
        }
    }
}
