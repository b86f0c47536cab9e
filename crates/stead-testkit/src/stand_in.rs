//! A stand-in for a running systemd, inside a container where none can be init: `systemctl` and `journalctl` with
//! states and failures. What is files (enabling, masking) is done by the real `systemctl --root=/`.
//!
//! A unit is known if its file is in `/etc/systemd/system`. Its behaviour is in that file, as a line
//! `# stand-in: WORD…`: `dies` (starts, then fails, logging why), `slow` (activating for a moment), `stuck`
//! (activating for ever), `reloads` (can reload), `hangs` (a reload never ends). What happened is in `/run/stand-in/calls`.

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
    reload) for unit in $units; do if does $unit hangs; then exec sleep 600; fi; done ;;
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

/// Returns a line of shell that does in a container what [`systemd`] does, for [`crate::container::Container::sh`].
pub fn systemd_script() -> String {
    let mut script =
        "mkdir -p /run/systemd/system /run/stand-in /etc/systemd/system /usr/local/sbin\n".to_owned();
    for (name, text) in [("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)] {
        let path = format!("/usr/local/sbin/{name}");
        script += &format!("cat >{path} <<'STAND-IN'\n{text}STAND-IN\nchmod 755 {path}\n");
    }
    script
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

/// Answers as docker and podman do, each with its own habits, for the calls that Stead makes. Images set a variable, a
/// command, a label and a volume. Perl: every Debian has it.
const ENGINE: &str = r##"#!/usr/bin/perl
# Stand-in for a container engine: see stead-testkit. Containers that run the image `broken` do not start.
use strict;
my $podman = $0 =~ /podman/;
my $base = '/run/engine';
mkdir $base; mkdir "$base/containers"; mkdir "$base/images";
open my $calls, '>>', "$base/calls"; print $calls "@ARGV\n"; close $calls;
sub quote { my $t = shift; $t =~ s/(["\\])/\\$1/g; return "\"$t\"" }
sub list { return '[' . join(',', map { quote($_) } @_) . ']' }
sub object { my %h = @_; return '{' . join(',', map { quote($_) . ':' . quote($h{$_}) } sort keys %h) . '}' }
sub slurp { my $f = shift; open my $h, '<', $f or return; local $/; return <$h> }
sub spit { my ($f, $t) = @_; open my $h, '>', $f or die; print $h $t; close $h }
sub image { my $i = shift; $i =~ s{^docker.io/library/}{}; $i =~ s{/}{%}g; return "$base/images/$i" }
sub found { my $n = shift; for my $f (glob "$base/images/*") { return $f if $f eq image($n) or slurp($f) eq $n } return }
sub number { my $n = (slurp("$base/serial") || 0) + 1; spit("$base/serial", $n); return $n }
sub id { return sprintf('%08x', (number() * 2654435761) & 0xffffffff) x 8 }
sub env { my ($tag) = $_[0] =~ /:([^@]*)/; return (PATH => '/bin', VERSION => $tag // 'latest') }
sub parts { my $n = shift; return map { "$base/containers/$n$_" } '', '.running', '.started' }
my $verb = shift @ARGV;
if ($verb eq 'image') { shift @ARGV; $verb = 'image inspect' }
if ($verb eq 'ps') {
    for my $file (glob "$base/containers/*") { $file =~ s{.*/}{}; print "$file\n" unless $file =~ /\.(running|started)$/ }
} elsif ($verb eq 'inspect') {
    my $name = $ARGV[-1];
    my $text = slurp("$base/containers/$name");
    if (!defined $text) { print "[]\n"; print STDERR "Error: No such container: $name\n"; exit 1 }
    my $running = -e "$base/containers/$name.running" ? 'true' : 'false';
    my $started = -e "$base/containers/$name.started" && $podman ? ',"HOSTNAME=rig","HOME=/root"' : '';
    $text =~ s/RUNNING/$running/; $text =~ s/STARTED/$started/;
    print "[$text]\n";
} elsif ($verb eq 'image inspect') {
    my $file = found($ARGV[-1]);
    if (!defined $file) { print "[]\n"; print STDERR "Error: No such image: $ARGV[-1]\n"; exit 1 }
    my %env = env($file);
    my @env = map { "$_=$env{$_}" } sort keys %env;
    print '[{"Id":' . quote(slurp($file)) . ',"Config":{"Env":' . list(@env)
        . ',"Cmd":["run"],"Labels":{"maintainer":"us"},"Volumes":{"/var/lib/app":{}}}}]' . "\n";
} elsif ($verb eq 'pull') {
    my $name = $ARGV[-1];
    if ($name =~ /missing/) { print STDERR "Error: pull access denied for $name\n"; exit 1 }
    # What has the name so far stays, without it.
    rename image($name), image($name) . '@' . slurp(image($name)) if -e image($name);
    spit(image($name), 'sha256:' . number());
} elsif ($verb eq 'create') {
    my ($name, $restart, %asked, %given, @ports, %mounts) = ('', 'no');
    my %labels = (maintainer => 'us');
    while (@ARGV) {
        my $arg = shift @ARGV;
        last if $arg eq '--';
        if ($arg =~ /^--(pull|network|user|memory|entrypoint|gpus)=(.*)$/) { $asked{$1} = $2; next }
        my $value = shift @ARGV;
        if ($arg eq '--name') { $name = $value }
        elsif ($arg eq '--restart') { $restart = $value }
        elsif ($arg eq '--env-file') { for (split /\n/, slurp($value)) { my ($k, $v) = split /=/, $_, 2; $given{$k} = $v } }
        elsif ($arg eq '--label') { my ($k, $v) = split /=/, $value, 2; $labels{$k} = $v }
        elsif ($arg eq '--publish') {
            $value =~ m{^(?:(.*):)?(\d+):(\d+/\w+)$} or die "publish $value";
            push @ports, "\"$3\":[{\"HostIp\":\"" . ($1 // '') . "\",\"HostPort\":\"$2\"}]";
        } elsif ($arg eq '--volume') {
            my ($s, $d, $mode) = split /:/, $value;
            my $kind = $s =~ m{^/} ? 'bind' : 'volume';
            my $rw = ($mode // '') =~ /\bro\b/ ? 'false' : 'true';
            $mounts{$d} = "{\"Type\":\"$kind\",\"Name\":\"$s\",\"Source\":\"$s\",\"Destination\":\"$d\",\"RW\":$rw}";
        } else { print STDERR "unknown flag $arg\n"; exit 125 }
    }
    my $image = shift @ARGV;
    my $file = found($image);
    if (!defined $file) { print STDERR "Error: No such image: $image\n"; exit 125 }
    if (-e "$base/containers/$name") { print STDERR "Error: the name $name is in use\n"; exit 125 }
    my $id = id();
    my $anonymous = id();
    $mounts{'/var/lib/app'} //= "{\"Type\":\"volume\",\"Name\":\"$anonymous\",\"Destination\":\"/var/lib/app\",\"RW\":true}";
    my %env = ($podman ? (TERM => 'xterm', container => 'podman') : (), env($file), %given);
    my ($policy, $count) = split /:/, $restart; $count ||= 0;
    my @entry = map { s/^"|"$//gr } split /,/, ($asked{entrypoint} // '') =~ s/^\[|\]$//gr;
    my @command = @ARGV || @entry ? @ARGV : ('run');
    my @words = (@entry, @command);
    my $mode = $asked{network} // 'bridge';
    my $networks = $mode eq 'host' ? '{}' : $podman && $mode eq 'bridge' ? '{"podman":{}}' : '{' . quote($mode) . ':{}}';
    $mode = 'bridge' if $podman && $mode ne 'host';
    $image = "docker.io/library/$image" if $podman && $image !~ m{/};
    my $devices = $asked{gpus} ? '[{"Count":-1}]' : 'null';
    spit("$base/containers/$name", '{"Id":' . quote($id) . ',"Image":' . quote(slurp($file)) . ',"Path":' . quote(shift @words)
        . ',"Args":' . list(@words) . ',"Config":{"Image":' . quote($image) . ',"Hostname":' . quote(substr $id, 0, 12)
        . ',"User":' . quote($asked{user} // '') . ',"Cmd":' . list(@command) . ',"Env":['
        . join(',', map { quote("$_=$env{$_}") } sort keys %env) . 'STARTED],"Labels":' . object(%labels)
        . '},"HostConfig":{"PortBindings":{' . join(',', @ports) . '},"NetworkMode":' . quote($mode) . ',"Memory":'
        . ($asked{memory} // 0) . ",\"DeviceRequests\":$devices,\"RestartPolicy\":{\"Name\":\"$policy\",\"MaximumRetryCount\":$count}}"
        . ",\"NetworkSettings\":{\"Networks\":$networks},\"State\":{\"Running\":RUNNING},\"Mounts\":["
        . join(',', map { $mounts{$_} } sort keys %mounts) . ']}');
} elsif ($verb eq 'start') {
    my $name = $ARGV[-1];
    my $text = slurp("$base/containers/$name") // die;
    if ($text =~ /"Image":"[^"]*broken/) { print STDERR "Error: the process of $name ended at once\n"; exit 125 }
    spit("$base/containers/$name.$_", '') for 'running', 'started';
} elsif ($verb eq 'stop') {
    unlink "$base/containers/$ARGV[-1].running";
} elsif ($verb eq 'rename') {
    if (-e "$base/containers/$ARGV[1]") { print STDERR "Error: the name $ARGV[1] is in use\n"; exit 125 }
    my @to = parts($ARGV[1]);
    for my $part (parts($ARGV[0])) { rename $part, shift @to }
    exit(-e "$base/containers/$ARGV[1]" ? 0 : 1);
} elsif ($verb eq 'rm') {
    print STDERR "Error: No such container: $ARGV[-1]\n" unless -e "$base/containers/$ARGV[-1]";
    unlink parts($ARGV[-1]);
} else { print STDERR "unknown command $verb\n"; exit 125 }
"##;

/// Puts a stand-in for the container engine `name` (`podman`, `docker`) in this container, with nothing in it.
///
/// # Panics
/// Outside a container of this crate.
pub fn engine(name: &str) {
    program(name, ENGINE);
    if Path::new("/run/engine").exists() {
        std::fs::remove_dir_all("/run/engine").expect("root removes anything");
    }
}

/// One recorded call of a program: its arguments, what it printed, how it ended.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The arguments, joined by spaces.
    pub arguments: &'static str,
    /// What it printed.
    pub stdout: &'static str,
    /// What it complained of.
    pub stderr: &'static str,
    /// Its exit code.
    pub exit: i32,
    /// Shell that does what it did to the system.
    pub effect: &'static str,
}

impl Call {
    /// A call that printed something and succeeded.
    pub const fn says(arguments: &'static str, stdout: &'static str) -> Self {
        Self { arguments, stdout, stderr: "", exit: 0, effect: "" }
    }

    /// A call that did something.
    pub const fn does(arguments: &'static str, effect: &'static str) -> Self {
        Self { arguments, stdout: "", stderr: "", exit: 0, effect }
    }

    /// A call that failed.
    pub const fn fails(
        arguments: &'static str,
        exit: i32,
        stdout: &'static str,
        stderr: &'static str,
    ) -> Self {
        Self { arguments, stdout, stderr, exit, effect: "" }
    }
}

const REPLAY: &str = r#"#!/bin/sh
# Replays recorded calls: see stead-testkit.
key=$(printf '%s' "$*" | cksum | tr ' ' -)
state=/run/transcript/$(basename "$0")
echo "$*" >>$state/calls
# After something was done, what was recorded after it counts first.
for phase in $(cat $state/phase 2>/dev/null) before; do
    call=$state/$phase/$key
    [ -e $call.out ] || continue
    cat $call.out
    cat $call.err >&2
    . $call.effect
    exit $(cat $call.code)
done
echo "no record of: $(basename "$0") $*" >&2
exit 99
"#;

/// Puts a program in this container that replays what was recorded: `before` anything was done, and, once an effect
/// has written `after` to `/run/transcript/NAME/phase`, first of all `after`.
///
/// # Panics
/// Outside a container of this crate.
pub fn transcript(name: &str, before: &[Call], after: &[Call]) {
    program(name, REPLAY);
    for (phase, calls) in [("before", before), ("after", after)] {
        let directory = Path::new("/run/transcript").join(name).join(phase);
        std::fs::create_dir_all(&directory).expect("root makes directories");
        for call in calls {
            let mut sum = std::process::Command::new("cksum");
            let mut sum = sum
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("cksum can be started");
            let mut input = sum.stdin.take().expect("it is piped");
            std::io::Write::write_all(&mut input, call.arguments.as_bytes()).expect("it reads");
            drop(input);
            let said = sum.wait_with_output().expect("it ends").stdout;
            let key = String::from_utf8_lossy(&said).trim().replace(' ', "-");
            let put = |suffix: &str, text: &str| {
                std::fs::write(directory.join(format!("{key}.{suffix}")), text)
                    .expect("root writes anywhere");
            };
            put("out", call.stdout);
            put("err", call.stderr);
            put("effect", call.effect);
            put("code", &call.exit.to_string());
        }
    }
}
