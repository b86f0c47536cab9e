//! A real browser without a screen: Chromium, told what to do over a pair of pipes.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// How long a page may take to show something; generous, for machines that have much to do.
const PATIENCE: Duration = Duration::from_secs(90);

/// What becomes of requests when an interface comes or goes, as other tests make them do.
const NETWORK_CHANGED: &str = "net::ERR_NETWORK_CHANGED";

/// A browser with one page open.
pub struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    number: u64,
    /// What the page complained of.
    complaints: Vec<String>,
    /// What is typed where a server asks who that is.
    login: Option<(String, String)>,
    _home: tempfile::TempDir,
}

impl Browser {
    /// Starts one; nothing if it is not installed.
    pub fn start() -> Option<Self> {
        let found =
            Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("STEAD_CI").is_none(), "chromium is not installed");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = home.path().join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            path
        };
        let (to, from) = (pipe("to"), pipe("from"));
        // It wants its orders as descriptor 3, and answers at 4.
        let script = r#"exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
            --disable-crash-reporter --disable-breakpad --disable-background-networking --disable-component-update \
            --remote-debugging-pipe "--user-data-dir=$3" about:blank 3<"$1" 4>"$2""#;
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .args([&to, &from, &home.path().join("profile")])
            // Where it also keeps what it leaves behind when it is killed.
            .envs([("HOME", home.path()), ("TMPDIR", home.path())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        // Each opens when the other side does.
        let to = File::options().write(true).open(to).unwrap();
        let from = BufReader::new(File::open(from).unwrap());
        let (session, complaints, login) = (None, Vec::new(), None);
        let mut browser = Self { child, to, from, session, number: 0, complaints, login, _home: home };
        let made = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": made["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        Some(browser)
    }

    /// Has the page be so wide, and dark if a person wants that.
    pub fn look(&mut self, width: u32, scheme: &str) {
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let wish = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", wish);
    }

    /// Has the browser be used by somebody who goes on where a certificate is strange, and who has a password.
    pub fn trust(&mut self, user: &str, password: &str) {
        self.login = Some((user.to_owned(), password.to_owned()));
        self.call("Security.setIgnoreCertificateErrors", json!({"ignore": true}));
        self.call("Fetch.enable", json!({"handleAuthRequests": true}));
    }

    /// Opens an address.
    pub fn open(&mut self, url: &str) {
        // Another place of the same page alone would load nothing.
        self.call("Page.navigate", json!({"url": "about:blank"}));
        let since = Instant::now();
        loop {
            let gone = self.call("Page.navigate", json!({"url": url}));
            let Some(error) = gone["errorText"].as_str() else { return };
            assert!(error == NETWORK_CHANGED && since.elapsed() < PATIENCE, "{url}: {error}");
        }
    }

    /// Returns what an expression is in the page.
    pub fn ask(&mut self, expression: &str) -> Value {
        let wish = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        self.call("Runtime.evaluate", wish)["result"]["value"].take()
    }

    /// Returns the text of the page.
    pub fn text(&mut self) -> String {
        self.ask("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true in the page.
    pub fn until(&mut self, expression: &str) {
        let since = Instant::now();
        while self.ask(&format!("Boolean({expression})")) != json!(true) {
            let text = self.text();
            assert!(since.elapsed() < PATIENCE, "never true: {expression}\n{text}\n{:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page says something.
    pub fn until_text(&mut self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Presses what is called `name`: a button, or something with that label.
    pub fn press(&mut self, name: &str) {
        let found = format!(
            "[...document.querySelectorAll('button, a, input, select, summary')].find((one) => \
             (one.getAttribute('aria-label') || one.innerText).trim() === {})",
            json!(name)
        );
        self.until(&found);
        self.ask(&format!("{found}.click()"));
    }

    /// Returns what went wrong in the page so far: errors of its program, and what its policy refused.
    pub fn complaints(&mut self) -> Vec<String> {
        // What was said comes before an answer.
        self.ask("1");
        self.complaints.clone()
    }

    /// Returns a picture of the page, as PNG in base64.
    pub fn picture(&mut self) -> String {
        let taken = self.call("Page.captureScreenshot", json!({"format": "png"}));
        taken["data"].as_str().unwrap_or_default().to_owned()
    }

    /// Gives an order and returns its number.
    fn order(&mut self, method: &str, params: Value) -> u64 {
        self.number += 1;
        let mut order = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{order}\0").as_bytes()).unwrap();
        self.number
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let number = self.order(method, params);
        loop {
            let mut told = Vec::new();
            self.from.read_until(0, &mut told).unwrap();
            assert_eq!(told.pop(), Some(0), "the browser ended during {method}");
            let mut told: Value = serde_json::from_slice(&told).unwrap();
            if told["id"] == number {
                assert!(told["error"].is_null(), "{method}: {told}");
                return told["result"].take();
            }
            match told["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.complaints.push(told["params"].to_string()),
                Some("Log.entryAdded")
                    if told["params"]["entry"]["level"] == "error"
                        && !told["params"].to_string().contains(NETWORK_CHANGED) =>
                {
                    self.complaints.push(told["params"]["entry"].to_string());
                }
                Some("Fetch.requestPaused") => {
                    self.order("Fetch.continueRequest", json!({"requestId": told["params"]["requestId"]}));
                }
                // Typed once: the browser remembers it if it was right.
                Some("Fetch.authRequired") => {
                    let typed = match self.login.take() {
                        Some((user, password)) => {
                            json!({"response": "ProvideCredentials", "username": user, "password": password})
                        }
                        None => json!({"response": "CancelAuth"}),
                    };
                    let request = &told["params"]["requestId"];
                    let answer = json!({"requestId": request, "authChallengeResponse": typed});
                    self.order("Fetch.continueWithAuth", answer);
                }
                Some(_) | None => {}
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // All of its processes are in one group.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process_group(group, Signal::KILL).ok();
        }
        self.child.wait().ok();
    }
}

/// Whether a picture is one.
pub fn is_picture(base64: &str) -> bool {
    base64.starts_with("iVBORw0KGgo") && base64.len() > 2_000
}
