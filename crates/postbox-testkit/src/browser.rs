//! A real browser: Chromium without a screen, driven as a person would, by `WebDriver`.
//!
//! The protocol is JSON over HTTP, one request after the other, so this is a few functions over a socket and no further
//! dependency. What Chromium alone can do (colour schemes, the width of a phone) goes through its own `DevTools` commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::eventually_blocking;
use crate::server::ChromeDriver;
use crate::server::broker::find_program;
use crate::server::chromedriver::failure;

/// Longer than anything takes that works, also on a busy machine.
const LONG: Duration = Duration::from_mins(1);

/// By this name a `WebDriver` answers with an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Chromium without a screen, without anything that it does on its own account.
const FLAGS: &[&str] = &[
    "--headless=new",
    // Its sandbox needs rights that containers do not give; the pages are our own.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    // The same picture everywhere.
    "--force-color-profile=srgb",
    "--lang=en-US",
];

/// Names the file `axe.min.js`, when it is not in `browser` of the target folder.
pub const AXE_ENV: &str = "POSTBOX_TEST_AXE";

/// A window of a browser of its own. It is closed when this value is dropped.
#[derive(Debug)]
pub struct Browser {
    driver: &'static ChromeDriver,
    session: String,
}

impl Browser {
    /// Opens one, with nothing kept from another.
    ///
    /// # Errors
    ///
    /// Why there is no browser here: what is not installed, or what it said.
    pub fn open() -> Result<Self, String> {
        let driver = ChromeDriver::try_shared()?;
        let chromium = find_program("chromium")?;
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "binary": chromium, "args": FLAGS },
        } } });
        let answer = ask(driver.addr(), "POST", "/session", Some(&wanted))?;
        let session = answer["sessionId"].as_str().ok_or("a session without an id")?.to_owned();
        let browser = Self { driver, session };
        browser.resize(1280, 900);
        Ok(browser)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        ask(self.driver.addr(), method, &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", path, Some(body)).unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    /// Goes to an address and waits until it is loaded.
    #[track_caller]
    pub fn goto(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Where it is.
    #[track_caller]
    pub fn url(&self) -> String {
        self.ask("GET", "/url", None).unwrap().as_str().unwrap().to_owned()
    }

    /// Runs JavaScript in the page, a function's body with `arguments`; gives what it returns.
    #[track_caller]
    pub fn run(&self, script: &str, args: &[Value]) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": args }))
    }

    /// The same for one that calls its last argument when it is done.
    #[track_caller]
    pub fn run_async(&self, script: &str, args: &[Value]) -> Value {
        self.post("/timeouts", &json!({ "script": 120_000 }));
        self.post("/execute/async", &json!({ "script": script, "args": args }))
    }

    /// A command of Chromium's own protocol.
    #[track_caller]
    pub fn devtools(&self, command: &str, params: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    /// The size of the page; narrow ones are phones.
    #[track_caller]
    pub fn resize(&self, width: u32, height: u32) {
        let params =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &params);
    }

    /// What the system would prefer: dark or light.
    #[track_caller]
    pub fn prefer_dark(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([
            { "name": "prefers-color-scheme", "value": value },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Waits until an expression of JavaScript is true; fails with what the page shows instead.
    #[track_caller]
    pub fn wait(&self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression})");
        let look = || self.run(&script, &[]) == Value::Bool(true);
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually_blocking(what, LONG, look);
        }));
        assert!(waited.is_ok(), "{what} never came; the page at {} shows:\n{}", self.url(), self.text());
    }

    /// Waits until the page shows a text.
    #[track_caller]
    pub fn see(&self, text: &str) {
        self.wait(&format!("{text:?}"), &format!("document.body.innerText.includes({})", json!(text)));
    }

    /// What the page shows as text.
    #[track_caller]
    pub fn text(&self) -> String {
        self.run("return document.body.innerText", &[]).as_str().unwrap_or_default().to_owned()
    }

    /// Clicks, as a pointer does, on what a selector finds: it must be there, seen, and not covered.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        self.click_on(selector, &format!("document.querySelector({})", json!(selector)));
    }

    /// Clicks on the button or link with this text: in the open dialog, if there is one.
    #[track_caller]
    pub fn press(&self, text: &str) {
        let find = format!(
            "[...(document.querySelector('dialog[open]') ?? document).querySelectorAll('a, button')]\
             .find((one) => one.innerText.trim() === {} && !one.disabled)",
            json!(text)
        );
        self.click_on(text, &find);
    }

    #[track_caller]
    fn click_on(&self, what: &str, find: &str) {
        self.wait(what, find);
        let script =
            format!("const one = {find}; one?.scrollIntoView({{ block: 'center' }}); return one ?? null");
        // The page may be drawn anew between the look and the click: then it is looked for again.
        let click = || {
            let found = self.run(&script, &[]);
            let Some(id) = found[ELEMENT].as_str() else { return false };
            match self.ask("POST", &format!("/element/{id}/click"), Some(&json!({}))) {
                Ok(_) => true,
                Err(error) if error.contains("stale") || error.contains("not attached") => false,
                Err(error) => panic!("{what}: {error}"),
            }
        };
        eventually_blocking(&format!("a click on {what}"), LONG, click);
    }

    /// Types into the field that a selector finds, over what it holds.
    #[track_caller]
    pub fn fill(&self, selector: &str, text: &str) {
        self.click(selector);
        self.run("document.activeElement.select?.()", &[]);
        self.keys(text);
    }

    /// Types, wherever the focus is.
    #[track_caller]
    pub fn keys(&self, text: &str) {
        let press = |key: char| {
            let key = match key {
                '\n' => '\u{E007}',
                other => other,
            };
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key }))
        };
        let actions: Vec<Value> = text.chars().flat_map(press).collect();
        self.post(
            "/actions",
            &json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] }),
        );
    }

    /// What the page has complained about since the last call: errors, refused content, failed requests.
    #[track_caller]
    pub fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().cloned().unwrap_or_default();
        let bad = entries.into_iter().filter(|entry| entry["level"] == "SEVERE");
        bad.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// A picture of what is seen, as PNG.
    #[track_caller]
    pub fn picture(&self) -> Vec<u8> {
        let answer = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        decode(answer["data"].as_str().unwrap_or_default())
    }

    /// What axe finds wrong with the page for people who hear it, or cannot tell its colours apart: one line each.
    #[track_caller]
    pub fn barriers(&self, axe: &str) -> Vec<String> {
        if self.run("return typeof axe", &[]) == "undefined" {
            // `arguments` and the rest of a function's body are not what the library expects around it.
            self.devtools("Runtime.evaluate", &json!({ "expression": axe }));
        }
        let script = "const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ['violations'] }).then(
                ({ violations }) => done(violations.flatMap(({ id, help, nodes }) => nodes.map((node) =>
                    `${id}: ${help}: ${node.target.join(' ')} (${node.any.concat(node.all).map((one) => one.message).join('; ')})`))),
                (error) => done([String(error)]));";
        let found = self.run_async(script, &[]);
        found
            .as_array()
            .into_iter()
            .flatten()
            .map(|line| line.as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.ask("DELETE", "", None).ok();
    }
}

/// The source of axe, which `cargo xtask test` fetches.
///
/// # Errors
///
/// Why it is not there.
pub fn axe() -> Result<String, String> {
    let files = match std::env::var_os(AXE_ENV) {
        Some(file) => vec![PathBuf::from(file)],
        // A test program is somewhere in the target folder.
        None => std::env::current_exe()
            .map(|program| program.ancestors().skip(1).map(|dir| dir.join("browser/axe.min.js")).collect())
            .unwrap_or_default(),
    };
    let missing = || {
        let why = files.iter().find_map(|file| std::fs::read_to_string(failure(file)).ok());
        why.unwrap_or_else(|| "no axe-core found: run `cargo xtask test`, which fetches it".to_owned())
    };
    files.iter().find_map(|file| std::fs::read_to_string(file).ok()).ok_or_else(missing)
}

/// One request and its answer's value.
fn ask(addr: std::net::SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let text = body.map(Value::to_string).unwrap_or_default();
    let io = |error: std::io::Error| format!("the driver of the browser: {error}");
    let mut stream = TcpStream::connect(addr).map_err(io)?;
    stream.set_read_timeout(Some(LONG)).map_err(io)?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes())).map_err(io)?;
    let mut reader = BufReader::new(stream);
    let mut length = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).map_err(io)? == 0 || line == "\r\n" {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        }
    }
    let mut answer = Vec::new();
    match length {
        Some(length) => reader.take(length).read_to_end(&mut answer).map_err(io)?,
        None => reader.read_to_end(&mut answer).map_err(io)?,
    };
    let answer: Value = serde_json::from_slice(&answer).map_err(|error| format!("no JSON: {error}"))?;
    let value = answer["value"].clone();
    match value["error"].as_str() {
        Some(error) if value["message"].is_string() => {
            let message = value["message"].as_str().unwrap_or_default();
            Err(format!("{error}: {}", message.lines().next().unwrap_or_default()))
        }
        _ => Ok(value),
    }
}

/// Base64, as pictures come.
fn decode(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for six in text.bytes().filter_map(value) {
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    bytes
}

/// Writes a picture.
#[track_caller]
pub fn keep(picture: &[u8], file: &Path) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, picture).unwrap();
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn base64_is_read() {
        assert_eq!(decode("aGVsbG8="), b"hello");
        assert_eq!(decode("/+8A"), [0xff, 0xef, 0x00]);
    }
}
