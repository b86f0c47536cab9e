//! `ProxyJump` as text.

use stead_model::transport::Jump;

/// Returns the hosts of a comma list, first hop first; none if one of them cannot be read.
pub(super) fn parse(text: &str) -> Option<Vec<Jump>> {
    text.split(',').map(|hop| parse_one(hop.trim())).collect()
}

fn parse_one(text: &str) -> Option<Jump> {
    let text = text.strip_prefix("ssh://").unwrap_or(text);
    let (user, place) = match text.rsplit_once('@') {
        Some((user, place)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), place),
        None => (None, text),
    };
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        (host, after.strip_prefix(':').or((!after.is_empty()).then_some("x")))
    } else {
        match place.split_once(':') {
            // More than one colon outside brackets is an address.
            Some((_, port)) if port.contains(':') => (place, None),
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        }
    };
    let port =
        port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0).ok_or(())).transpose().ok()?;
    (!host.is_empty()).then(|| Jump { user, host: host.to_owned(), port, host_key: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_ports_and_addresses() {
        let hops = parse("a@b:1, c,ssh://d@[::1]:22,u@fd00::7").unwrap();
        let texts: Vec<_> =
            hops.iter().map(|hop| (hop.user.as_deref(), hop.host.as_str(), hop.port)).collect();
        assert_eq!(
            texts,
            [
                (Some("a"), "b", Some(1)),
                (None, "c", None),
                (Some("d"), "::1", Some(22)),
                (Some("u"), "fd00::7", None)
            ]
        );
        for text in ["", "a,,b", "h:0", "h:x", "u@", "[::1]x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
