//! A server where any port will do may find its own taken by another program. What it was told is kept under the number of
//! its port, and goes along to the new one.

use std::fs::{self, File};
use std::io;

use crate::lock;
use crate::place::{ServerPlace, WantedPort};

/// What goes along. The journal is last: until it is there, the rest may be on its way.
const TAKEN_ALONG: [&str; 4] = ["outputs", "inputs", "plans", JOURNAL];
const JOURNAL: &str = "journal";

/// Remembers that a server is at `port`, whose lock it holds, and takes along what it was told at the ports before. Returns
/// what stays there, and why.
///
/// Meanwhile the file of the port names those before, too: who is killed leaves the rest to the next.
pub(crate) fn settle(place: &ServerPlace, wanted: WantedPort, port: u16) -> io::Result<Vec<String>> {
    let mut before = place.kept_ports();
    let was_remembered = !before.is_empty();
    before.push(wanted.number);
    before.retain(|old| *old != port && has_any(place, *old));
    let mut stays = Vec::new();
    if !before.is_empty() {
        remember(place, &[&[port], before.as_slice()].concat())?;
        for old in before {
            stays.extend(take_along(place, old, port)?);
        }
    }
    if port != wanted.number {
        remember(place, &[port])?;
    } else if was_remembered {
        fs::remove_file(place.port_file())?;
    }
    Ok(stays)
}

fn has_any(place: &ServerPlace, port: u16) -> bool {
    TAKEN_ALONG.iter().any(|what| place.of_port(port, what).exists())
}

fn remember(place: &ServerPlace, ports: &[u16]) -> io::Result<()> {
    let (file, new) = (place.port_file(), place.port_file().with_extension("new"));
    fs::write(&new, ports.iter().map(|port| format!("{port}\n")).collect::<String>())?;
    fs::rename(&new, &file)
}

/// Takes along what a server at `old` was told. Returns why it stays there, if it does.
fn take_along(place: &ServerPlace, old: u16, port: u16) -> io::Result<Option<String>> {
    // One that runs there is another server of this site: what it was told is its own.
    let Some(_held) = lock::take(&place.lock(old))? else { return Ok(None) };
    if place.of_port(port, JOURNAL).exists() {
        let stays = format!("what a server at port {old} was told stays there: port {port} has its own");
        return Ok(place.of_port(old, JOURNAL).exists().then_some(stays));
    }
    for what in TAKEN_ALONG {
        match fs::rename(place.of_port(old, what), place.of_port(port, what)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    File::open(place.directory())?.sync_all()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(state: &tempfile::TempDir) -> ServerPlace {
        let place = ServerPlace { site: state.path().join("site"), state: state.path().to_owned() };
        fs::create_dir(place.directory()).unwrap();
        place
    }

    fn told(place: &ServerPlace, port: u16) {
        for what in ["outputs", "inputs", "plans"] {
            fs::create_dir(place.of_port(port, what)).unwrap();
            fs::write(place.of_port(port, what).join("of"), port.to_string()).unwrap();
        }
        fs::write(place.of_port(port, JOURNAL), port.to_string()).unwrap();
    }

    /// Returns of which server the things at a port are.
    fn origins(place: &ServerPlace, port: u16) -> Vec<Option<String>> {
        let read = |what: &str| match what {
            JOURNAL => fs::read_to_string(place.of_port(port, what)).ok(),
            _ => fs::read_to_string(place.of_port(port, what).join("of")).ok(),
        };
        TAKEN_ALONG.map(read).to_vec()
    }

    fn wanted(place: &ServerPlace, of_site: u16) -> WantedPort {
        place.wanted_port((of_site == 0).then_some(0), of_site)
    }

    #[test]
    fn what_a_server_was_told_goes_along() {
        let state = tempfile::tempdir().unwrap();
        let place = place(&state);
        assert!(settle(&place, wanted(&place, 0), 1).unwrap().is_empty());
        told(&place, 1);
        assert!(settle(&place, wanted(&place, 0), 2).unwrap().is_empty());
        assert_eq!(origins(&place, 2), vec![Some("1".to_owned()); 4]);
        assert_eq!(origins(&place, 1), vec![None; 4]);
        assert_eq!((wanted(&place, 0).kept, place.kept_ports()), (Some(2), vec![2]));
    }

    /// Also the rest, by a server at a third port, if the one that began was killed.
    #[test]
    fn what_was_under_way_comes_after() {
        let state = tempfile::tempdir().unwrap();
        let place = place(&state);
        told(&place, 1);
        remember(&place, &[2, 1]).unwrap();
        fs::rename(place.of_port(1, "outputs"), place.of_port(2, "outputs")).unwrap();
        assert_eq!(wanted(&place, 0).kept, Some(2));
        assert!(settle(&place, wanted(&place, 0), 3).unwrap().is_empty());
        assert_eq!(origins(&place, 3), vec![Some("1".to_owned()); 4]);
        assert_eq!(place.kept_ports(), [3]);
    }

    /// A server that runs keeps its own, and nothing is put over what another has.
    #[test]
    fn nothing_is_taken_from_others_or_put_over_them() {
        let state = tempfile::tempdir().unwrap();
        let place = place(&state);
        told(&place, 1);
        remember(&place, &[1]).unwrap();
        let running = lock::take(&place.lock(1)).unwrap().unwrap();
        assert!(settle(&place, wanted(&place, 0), 2).unwrap().is_empty());
        assert_eq!(origins(&place, 1), vec![Some("1".to_owned()); 4]);
        drop(running);
        told(&place, 2);
        remember(&place, &[1]).unwrap();
        let stays = settle(&place, wanted(&place, 0), 2).unwrap();
        assert!(stays[0].contains("port 1") && stays.len() == 1, "{stays:?}");
        assert_eq!(origins(&place, 1), vec![Some("1".to_owned()); 4]);
        assert_eq!(origins(&place, 2), vec![Some("2".to_owned()); 4]);
    }
}
