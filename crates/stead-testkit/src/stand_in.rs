//! A stand-in for a running systemd, inside a container where none can be init: `systemctl` and `journalctl` with
//! states and failures. What is files (enabling, masking) is done by the real `systemctl --root=/`.
//!
//! A unit is known if its file is in `/etc/systemd/system`. Its behaviour is in that file, as a line
//! `# stand-in: WORD…`: `dies` (starts, then fails, logging why), `slow` (activating for a moment), `stuck`
//! (activating for ever), `reloads` (can reload). What happened is in `/run/stand-in/calls`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const SYSTEMCTL: &str = r##"#!/bin/sh
# Stand-in for systemctl: see stead-testkit.
state=/run/stand-in
echo "$*" >>$state/calls
verb=
units=
for arg; do
    case "$arg" in
        --root=*) exec /usr/bin/systemctl "$@" ;;
        -*) ;;
        *) if [ -z "$verb" ]; then verb=$arg; else units="$units $arg"; fi ;;
    esac
done
does() { grep -qs "^# stand-in:.*\b$2\b" "/etc/systemd/system/$1"; }
known() { [ -e "/etc/systemd/system/$1" ]; }
up() {
    if does "$1" dies; then
        echo active >$state/$1.active
        i=0; while [ $i -lt 25 ]; do i=$((i + 1)); echo "line $i of $1: cannot bind" >>$state/$1.log; done
        (sleep 0.1; echo failed >$state/$1.active) >/dev/null 2>&1 &
    elif does "$1" stuck; then
        echo activating >$state/$1.active
    elif does "$1" slow; then
        echo activating >$state/$1.active
        (sleep 0.3; echo active >$state/$1.active) >/dev/null 2>&1 &
    else
        echo active >$state/$1.active
    fi
}
case "$verb" in
    show)
        for unit in $units; do
            file=$(/usr/bin/systemctl --root=/ is-enabled $unit 2>/dev/null)
            if [ "$file" = masked ]; then load=masked; elif known $unit; then load=loaded; else load=not-found; fi
            active=$(cat $state/$unit.active 2>/dev/null || echo inactive)
            if does $unit reloads; then reload=yes; else reload=no; fi
            printf 'LoadState=%s\nActiveState=%s\nUnitFileState=%s\nCanReload=%s\n' $load $active "$file" $reload
        done ;;
    start | restart)
        for unit in $units; do
            known $unit || { echo "Failed to start $unit: Unit $unit not found." >&2; exit 5; }
            up $unit
        done ;;
    stop) for unit in $units; do echo inactive >$state/$unit.active; done ;;
    reload) ;;
    daemon-reload) ;;
    enable | disable) exec /usr/bin/systemctl --root=/ $verb $units ;;
    *) echo "stand-in: $verb is not known" >&2; exit 1 ;;
esac
"##;

const JOURNALCTL: &str = r#"#!/bin/sh
# Stand-in for journalctl: the log of the unit after --unit.
lines=10
while [ $# -gt 0 ]; do
    case "$1" in
        --lines=*) lines=${1#--lines=} ;;
        --unit) unit=$2; shift ;;
    esac
    shift
done
tail -n "$lines" "/run/stand-in/$unit.log" 2>/dev/null
exit 0
"#;

/// Makes this container look as if systemd ran in it.
///
/// # Panics
/// Outside a container of this crate, where it would replace the machine's own programs.
pub fn systemd() {
    assert!(crate::container::is_inside(), "a stand-in is for a container");
    std::fs::create_dir_all("/run/systemd/system").expect("root makes directories");
    std::fs::create_dir_all("/run/stand-in").expect("root makes directories");
    std::fs::create_dir_all("/etc/systemd/system").expect("root makes directories");
    program("systemctl", SYSTEMCTL);
    program("journalctl", JOURNALCTL);
}

/// Puts a program in front of the system's own.
///
/// # Panics
/// Outside a container of this crate.
pub fn program(name: &str, script: &str) {
    assert!(crate::container::is_inside(), "a stand-in is for a container");
    let path = Path::new("/usr/local/sbin").join(name);
    std::fs::write(&path, script).expect("root writes anywhere");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is there");
}

/// Returns what the stand-in for `systemctl` was asked, one line per call, and forgets it.
pub fn calls() -> Vec<String> {
    let path = Path::new("/run/stand-in/calls");
    let calls = std::fs::read_to_string(path).unwrap_or_default();
    std::fs::write(path, "").unwrap_or(());
    calls.lines().map(str::to_owned).collect()
}
