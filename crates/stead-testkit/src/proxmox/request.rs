//! A request as it was sent: its path, and its fields wherever they are.

use hyper::Uri;

pub(super) struct Request {
    pub(super) method: String,
    /// The parts of the path after `/api2/json/`, decoded.
    pub(super) path: Vec<String>,
    pub(super) fields: Vec<(String, String)>,
    /// What was uploaded, and as what.
    pub(super) file: Option<(String, Vec<u8>)>,
}

impl Request {
    pub(super) fn read(method: &str, uri: &Uri, kind: &str, body: &[u8]) -> Self {
        let path = uri.path().strip_prefix("/api2/json/").unwrap_or_default();
        let mut fields = read_form(uri.query().unwrap_or_default());
        let mut file = None;
        if kind.starts_with("application/x-www-form-urlencoded") {
            fields.extend(read_form(&String::from_utf8_lossy(body)));
        } else if let Some((_, bound)) = kind.split_once("boundary=") {
            file = read_parts(body, bound, &mut fields);
        }
        Self { method: method.to_owned(), path: path.split('/').map(decode).collect(), fields, file }
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.field(name)?.parse().ok()
    }
}

fn read_form(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        })
        .collect()
}

/// Returns `text` without percent signs.
pub(super) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 3).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.filter(|_| *byte == b'%').and_then(|code| u8::from_str_radix(code, 16).ok());
        decoded.push(code.unwrap_or(*byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Reads the parts of an upload; its fields have to stand before its file.
fn read_parts(body: &[u8], bound: &str, fields: &mut Vec<(String, String)>) -> Option<(String, Vec<u8>)> {
    let mut rest = body;
    loop {
        let (head, tail) = split(rest, b"\r\n\r\n")?;
        let (content, tail) = split(tail, format!("\r\n--{bound}").as_bytes())?;
        let head = String::from_utf8_lossy(head).into_owned();
        let quoted = |key: &str| Some(head.split_once(&format!("{key}=\""))?.1.split('"').next()?.to_owned());
        match (quoted("; name"), quoted("; filename")) {
            (_, Some(file)) => return Some((file, content.to_vec())),
            (Some(name), None) => fields.push((name, String::from_utf8_lossy(content).into_owned())),
            (None, None) => return None,
        }
        rest = tail;
    }
}

fn split<'b>(bytes: &'b [u8], at: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    let place = bytes.windows(at.len()).position(|window| window == at)?;
    Some((bytes.get(..place)?, bytes.get(place + at.len()..)?))
}
