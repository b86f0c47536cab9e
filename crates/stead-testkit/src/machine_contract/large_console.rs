//! A machine that says more than a console may hold.

use std::fs;
use std::path::Path;
use std::time::Duration;

use stead_model::machine::MachineId;
use stead_runner::machine::MachineDriver;
use tokio::io::AsyncReadExt as _;

use super::within;

/// What no console may be larger than.
const LARGEST: u64 = 16 << 20;
/// More than that, and less than twice as much: all of it is kept.
pub const MUCH: usize = 18_000_000;
/// What a machine that says [`MUCH`] says last.
pub const LAST_WORDS: &str = "all is said";

/// Returns a shell script that writes [`MUCH`], then [`LAST_WORDS`], and stays.
pub fn script() -> String {
    format!("head -c {MUCH} /dev/zero | tr '\\0' x; echo; echo {LAST_WORDS}; exec sleep 1000")
}

/// Waits, without a look by any driver, until the machine that is kept in `home` has said [`MUCH`]; then nothing is
/// larger than it may be, and everything is there for who reads it.
///
/// # Panics
/// If that is not so.
pub async fn verify_large_console(driver: &dyn MachineDriver, id: &MachineId, home: &Path) {
    let log = home.join("console.log");
    let all_said = async {
        while !fs::read(&log).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(LAST_WORDS)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(all_said).await;
    let entries = fs::read_dir(home).expect("its directory").flatten();
    let consoles = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("console.log"));
    let sizes: Vec<u64> = consoles.map(|entry| entry.metadata().expect("a file").len()).collect();
    assert!(sizes.len() == 2 && sizes.iter().all(|size| *size <= LARGEST), "{sizes:?}");
    let mut stream = within(driver.console(id, 0)).await.expect("a console");
    assert_eq!(stream.start, 0, "what is kept is read");
    let mut said = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&said[said.len().saturating_sub(100)..]).contains(LAST_WORDS) {
            assert!(stream.bytes.read_buf(&mut said).await.expect("a console") > 0);
        }
    };
    within(reading).await;
    let much = said.iter().filter(|byte| **byte == b'x').count();
    assert!(much >= MUCH, "{much} of {MUCH} were read");
    // The same bytes are at the same places for who begins there.
    for place in [1, 10_000_000, said.len() as u64 - 20] {
        let mut later = within(driver.console(id, place)).await.expect("a console");
        let mut bytes = vec![0; 20];
        within(later.bytes.read_exact(&mut bytes)).await.expect("so many bytes");
        let from = usize::try_from(place).expect("a small place");
        assert_eq!((later.start, bytes.as_slice()), (place, &said[from..from + 20]));
    }
}
