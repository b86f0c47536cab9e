//! What a machine driver adds to the program that runs its machines.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stead_drivers::machine::qemu::{Accel, QemuDriver, QemuSettings};
use stead_model::machine::{Boot, Machine, MachineKind, MachineSpec, Owner};
use stead_runner::machine::MachineDriver;
use stead_testkit::micro_vm;

use crate::Effort;
use crate::sample::median;
use crate::shell::{binary, is_installed};
use crate::table::{Table, millis};

/// The most that a start may take beyond that of bare QEMU.
const MOST: f64 = 0.050;
/// How often a console is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// A guest that is not up by then never will be.
const PATIENCE: Duration = Duration::from_secs(60);

/// The line about virtual machines.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    let what = "start of a virtual machine until its guest speaks, over bare QEMU (tcg)";
    if let Some(missing) =
        ["qemu-system-x86_64", "qemu-img"].into_iter().find(|program| !is_installed(program))
    {
        return table.skipped(what, &format!("{missing} is not installed"));
    }
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..=effort.samples() {
        let (one, other) = sample();
        // The first round warms the cache.
        if round > 0 {
            ours.push(one);
            bare.push(other);
        }
    }
    let [ours, bare] = [ours, bare].map(|taken| median(taken).as_secs_f64());
    let shown = format!("{} ({} - {})", millis(ours - bare), millis(ours), millis(bare));
    table.at_most(what, shown, ours - bare, millis(MOST), MOST);
}

/// Returns how long a start takes by the driver, and by the same command line alone.
fn sample() -> (Duration, Duration) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let image = directory.path().join("guest.img");
    fs::write(&image, micro_vm::boot_disk()).expect("an image");
    let owner = Owner::new("bench/machines/local", "one").expect("an owner");
    let spec = MachineSpec {
        memory_mb: Some(32),
        boot: Some(Boot::Image(image.display().to_string())),
        ..MachineSpec::new(owner, MachineKind::Vm)
    };
    let settings =
        QemuSettings { accel: Accel::Tcg, ..QemuSettings::new(directory.path().join("machines"), binary()) };
    let driver = QemuDriver::new(settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let machine = runtime.block_on(driver.ensure_created(&spec)).expect("a machine").machine;
    let home = directory.path().join("machines").join(&machine.uuid);

    let begin = Instant::now();
    runtime.block_on(driver.start(&machine.id)).expect("a start");
    until_up(&home, 1);
    let ours = begin.elapsed();

    let running = runtime.block_on(driver.inspect(&machine.id)).expect("an answer").expect("a machine");
    let command_line = command_line(&running);
    runtime.block_on(driver.stop(&machine.id, PATIENCE)).expect("a stop");
    let begin = Instant::now();
    let mut child = start_bare(&home, &command_line);
    until_up(&home, 2);
    let bare = begin.elapsed();
    child.kill().and_then(|()| child.wait()).expect("an end");
    runtime.block_on(driver.destroy(&machine.id)).expect("nothing is left");
    (ours, bare)
}

/// Returns the words that the machine's process was started with.
fn command_line(machine: &Machine) -> Vec<String> {
    let pid = machine.pid.expect("a process");
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).expect("its command line");
    let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    // Alone nobody reads its pipe.
    words.filter(|word| !word.is_empty()).map(|word| word.replace("console.pipe", "console.log")).collect()
}

fn start_bare(home: &Path, command_line: &[String]) -> Child {
    let (program, arguments) = command_line.split_first().expect("a program");
    let orders = File::open(home.join("events.in")).expect("what its monitor is told");
    let mut command = Command::new(program);
    command.args(arguments).current_dir(home).stdin(orders).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a process")
}

/// Waits until guests have said `times` times that they are up.
fn until_up(home: &Path, times: usize) {
    let end = Instant::now() + PATIENCE;
    loop {
        let console = fs::read(home.join("console.log")).unwrap_or_default();
        if String::from_utf8_lossy(&console).matches("up\r\n").count() >= times {
            return;
        }
        assert!(Instant::now() < end, "the guest is not up: {}", String::from_utf8_lossy(&console));
        std::thread::sleep(LOOK);
    }
}
