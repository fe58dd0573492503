//! `cargo xtask fuzz-api`: requests that nobody would think of, made by schemathesis from the description of the admin API, to a
//! real relay on a file and on PostgreSQL. None may be answered with a 5xx, nor otherwise than the description says.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postbox_testkit::PgServer;
use serde_json::{Value, json};

use crate::run::{cargo, output, root, step};
use crate::{install, metadata};

const TOKEN: &str = "0123456789abcdef-fuzz";

/// A major version whose flags are known here.
const PACKAGE: &str = "schemathesis>=4,<5";

const CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// So many requests for each route and kind of test, unless the caller says otherwise.
const EXAMPLES: &str = "50";

/// Fuzzes the API of the program as it is built for development.
pub(crate) fn run(extra: &[&str]) -> Result<(), String> {
    install::test_needs(false)?;
    step("cargo build -p postbox-cli", cargo().args(["build", "-p", "postbox-cli"]))?;
    let target = metadata::read()?.target;
    let schemathesis = installed(&target)?;
    let server = PgServer::try_with(&[])?;
    let url = server.url("postgres");
    for (name, url, table) in
        [("sqlite", "sqlite:postbox.db", "shop_outbox"), ("postgres", url.as_str(), "public.shop_outbox")]
    {
        let folder = target.join("fuzz-api").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let site = Site { program: target.join("debug/postbox"), folder, url: url.to_owned(), table };
        site.fuzz(name, &schemathesis, extra)?;
    }
    Ok(())
}

/// Schemathesis, in a folder of its own; installed once.
fn installed(target: &Path) -> Result<PathBuf, String> {
    let folder = target.join("schemathesis");
    let program = folder.join("bin/schemathesis");
    if !program.exists() {
        step("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let mut pip = Command::new(folder.join("bin/pip"));
        step("pip install schemathesis", pip.args(["install", "--quiet", PACKAGE]))?;
    }
    Ok(program)
}

struct Site {
    program: PathBuf,
    folder: PathBuf,
    url: String,
    table: &'static str,
}

/// Ended when it is dropped, whatever happened.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Site {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .args(["--table", self.table])
            .current_dir(&self.folder)
            .env("DATABASE_URL", &self.url);
        command
    }

    fn fuzz(&self, name: &str, schemathesis: &Path, extra: &[&str]) -> Result<(), String> {
        output(&mut self.command(&["migrate", "up", "--inbox"]))?;
        let mut events = Vec::new();
        for (n, topic) in
            ["shop.order.placed.v1", "lost.letter.written.v1"].iter().cycle().take(8).enumerate()
        {
            let id = format!("00000000-0000-7000-8000-{n:012}");
            let enqueue =
                ["enqueue", "--topic", topic, "--payload", "{}", "--aggregate", "order/1", "--event-id", &id];
            output(&mut self.command(&enqueue))?;
            events.push(id);
        }
        // What no route takes is dead at once.
        let config = "[[route]]\ntopic = \"shop.**\"\nsink = \"null:\"\n";
        std::fs::write(self.folder.join("postbox.toml"), config).map_err(|error| error.to_string())?;
        let (_relay, address) = self.relay()?;
        let document = self.document(&events)?;
        let mut fuzz = Command::new(schemathesis);
        fuzz.arg("run").arg(document).args([
            "--url",
            &address,
            "--phases",
            "coverage,fuzzing",
            "--checks",
            CHECKS,
        ]);
        fuzz.args(["-H", &format!("Authorization: Bearer {TOKEN}"), "--request-timeout", "30"]);
        // A stream has no end.
        fuzz.args(["--exclude-path", "/api/v1/stream", "--max-examples", EXAMPLES, "--no-color"]).args(extra);
        step(&format!("schemathesis on {name}"), fuzz.current_dir(&self.folder))
    }

    /// A relay with the API, and where it is.
    fn relay(&self) -> Result<(Relay, String), String> {
        let log = self.folder.join("relay.log");
        let file = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let mut command = self.command(&["relay", "--dashboard", "--admin-listen", "127.0.0.1:0"]);
        command.env("OUTBOX_ADMIN_OPERATOR_TOKENS", TOKEN).stderr(file).stdout(Stdio::null());
        let mut relay = Relay(command.spawn().map_err(|error| error.to_string())?);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if let Some(line) = text.lines().find_map(|line| line.split("dashboard on ").nth(1)) {
                return Ok((relay, line.trim().trim_end_matches('/').to_owned()));
            }
            if relay.0.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Err(format!("the relay has ended: {text}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("the relay does not say where its dashboard is".to_owned())
    }

    /// The description with ids that there are: what is asked about nothing finds nothing out.
    fn document(&self, events: &[String]) -> Result<PathBuf, String> {
        let source = root().join("crates/postbox-cli/src/admin/openapi.json");
        let text = std::fs::read_to_string(source).map_err(|error| error.to_string())?;
        let mut document: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let parameters = &mut document["components"]["parameters"];
        parameters["table"]["schema"] = json!({ "type": "string", "enum": [self.table] });
        parameters["event_id"]["schema"] = json!({ "type": "string", "enum": events });
        let path = self.folder.join("openapi.json");
        std::fs::write(&path, document.to_string()).map_err(|error| error.to_string())?;
        Ok(path)
    }
}
