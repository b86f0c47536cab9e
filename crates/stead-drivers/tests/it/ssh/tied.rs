//! Case 11 without the executor: commands that end with the connection, and what watching them costs a server.

use super::faults::until_idle;
use super::*;
use std::time::Duration;

use stead_runner::transport::Stdin;
use tokio::task::JoinSet;

fn tied(script: &str, grace: u64) -> Command {
    let mut command = Command::new(["sh", "-c", script]);
    command.tied = Some(Duration::from_secs(grace));
    command
}

/// Starts a command and returns it with the numbers on its first line.
async fn started(host: &dyn Transport, command: Command) -> (Running, Vec<u32>) {
    let mut running = host.exec(command).await.unwrap();
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(running.stdout.read_u8().await.unwrap());
    }
    let line = String::from_utf8(line).unwrap();
    (running, line.split_whitespace().map(|number| number.parse().unwrap()).collect())
}

fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

async fn until_gone(pids: &[u32]) {
    for _ in 0..6000 {
        if !pids.iter().any(|pid| lives(*pid)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("of {pids:?} some go on");
}

/// Case 11: a command and its children, one that does not stop, and one that reads its input; what a command that
/// ended has left running stays.
#[tokio::test]
async fn commands_end_with_the_connection_and_what_they_left_stays() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let left = tied("sleep 600 >/dev/null 2>&1 </dev/null & echo $!", 60);
    let (mut running, left) = started(&*host, left).await;
    assert_eq!(running.process.wait().await.unwrap(), Exit::Code(0));
    let (_family, family) = started(&*host, tied("sleep 600 & echo $$ $!; wait", 60)).await;
    let stubborn = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let (_stubborn, stubborn) = started(&*host, tied(stubborn, 1)).await;
    let mut reads = tied("echo $$; read x; exec sleep 600", 60);
    reads.stdin = Stdin::Piped;
    let (_reads, reads) = started(&*host, reads).await;
    server.drop_connections();
    until_gone(&[family, stubborn, reads].concat()).await;
    assert!(left.iter().all(|pid| lives(*pid)), "nobody asked to end what was left on purpose");
}

/// The watcher of a connection goes with it.
#[tokio::test]
async fn nothing_watches_on_after_the_end() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let finished = finish(host.exec(tied("exit 3", 60)).await.unwrap()).await.unwrap();
    assert_eq!(finished.exit, Exit::Code(3));
    drop(host);
    until_idle(&server).await;
}

/// A watcher that somebody ended is replaced.
#[tokio::test]
async fn another_watcher_takes_the_place_of_one_that_was_killed() {
    let server = Sshd::start();
    let host = connect(&server).await;
    // The watcher is the other child of the connection's process.
    let others = "for s in /proc/[0-9]*/stat; do read -r p c s q r <$s 2>/dev/null || continue; \
                  [ \"$q\" = $PPID ] && [ $p != $$ ] && echo $p; done; true";
    let watcher = finish(host.exec(tied(others, 60)).await.unwrap()).await.unwrap().stdout;
    let watcher: Vec<&str> = watcher.split_whitespace().collect();
    assert_eq!(watcher.len(), 1, "{watcher:?}");
    run(&*host, &["kill", "-9", watcher[0]]).await.unwrap();
    until_gone(&[watcher[0].parse().unwrap()]).await;
    // That it is gone is known once the server says so: commands pass meanwhile.
    let mut tries = 0..1000;
    loop {
        assert!(tries.next().is_some(), "nobody took its place");
        let again = finish(host.exec(tied(others, 60)).await.unwrap()).await.unwrap();
        assert_eq!(again.exit, Exit::Code(0), "{again:?}");
        if again.stdout.lines().count() == 1 {
            break;
        }
    }
    let (_running, pids) = started(&*host, tied("echo $$; exec sleep 600", 60)).await;
    server.drop_connections();
    until_gone(&pids).await;
}

/// Case 5: the watcher takes a place, and gives it back if it is the only one.
#[tokio::test]
async fn servers_with_few_places_keep_one_for_commands() {
    for places in [1, 2, 3] {
        let server = Sshd::builder().config(&format!("MaxSessions {places}")).start();
        let host = connect(&server).await;
        let mut all = JoinSet::new();
        for number in 0..10 {
            let host = Arc::clone(&host);
            all.spawn(async move {
                let running = host.exec(tied(&format!("sleep 0.02; echo {number}"), 60)).await.unwrap();
                finish(running).await.unwrap().stdout
            });
        }
        let mut said: Vec<u32> =
            all.join_all().await.iter().map(|line| line.trim().parse().unwrap()).collect();
        said.sort_unstable();
        assert_eq!(said, (0..10).collect::<Vec<_>>(), "{places} places");
        assert_eq!(server.logins(), 1, "over one connection");
    }
}
