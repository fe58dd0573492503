//! A PostgreSQL server of our own.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::account::Account;
use super::database::{TestDb, psql};
use super::room::in_memory;
use super::run;
use super::url::ServerUrl;
use super::watchdog::Watchdog;

/// Names a server that tests share, as a superuser's URL; `cargo xtask test` sets it.
pub const URL_ENV: &str = "POSTBOX_TEST_PG_URL";

/// Names the folder of PostgreSQL's programs, when it is not where packages put them.
pub const BIN_ENV: &str = "POSTBOX_TEST_PG_BIN";

/// Another process may take the free port between our look and the server's.
const PORT_TRIES: usize = 5;

/// A PostgreSQL server for tests: a private one, or the one that [`URL_ENV`] names.
///
/// A private server listens on a free port of 127.0.0.1, trusts everybody, and does not wait for the disk
/// (`fsync=off`) unless told to. It ends with this value, or with this process.
#[derive(Debug)]
pub struct PgServer {
    url: ServerUrl,
    psql: PathBuf,
    instance: Option<Instance>,
}

impl PgServer {
    /// Starts a private server.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a private server with settings of its own, each as `name=value`.
    pub fn with(settings: &[&str]) -> Self {
        Self::try_with(settings).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`PgServer::with`], with the reason instead of a panic.
    pub fn try_with(settings: &[&str]) -> Result<Self, String> {
        let bin = find_binaries()?;
        let psql = bin.join("psql");
        let (instance, port) = Instance::start(bin, settings)?;
        Ok(Self { url: ServerUrl::local(port), psql, instance: Some(instance) })
    }

    /// The server that all tests of this process share: the one that [`URL_ENV`] names, else a private one.
    pub fn shared() -> &'static Self {
        Self::try_shared().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`PgServer::shared`], with the reason instead of a panic; see [`postgres_or_skip!`](crate::postgres_or_skip).
    pub fn try_shared() -> Result<&'static Self, String> {
        static SHARED: OnceLock<Result<PgServer, String>> = OnceLock::new();
        SHARED
            .get_or_init(|| match std::env::var(URL_ENV) {
                Ok(url) => Self::at(&url).map_err(|error| format!("{URL_ENV}: {error}")),
                Err(_) => Self::try_with(&[]),
            })
            .as_ref()
            .map_err(Clone::clone)
    }

    /// A server that somebody else started and will stop.
    pub fn at(url: &str) -> Result<Self, String> {
        let psql = find_binaries().map_or_else(|_| PathBuf::from("psql"), |bin| bin.join("psql"));
        Ok(Self { url: ServerUrl::parse(url)?, psql, instance: None })
    }

    /// The superuser's URL of one database.
    pub fn url(&self, db: &str) -> String {
        self.url.database(db)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.url.port
    }

    /// Where it listens: a proxy's upstream.
    pub fn addr(&self) -> SocketAddr {
        self.url.addr()
    }

    /// Makes a fresh database, to be dropped with the value returned.
    pub fn database(&self) -> TestDb {
        TestDb::create(self.url.clone(), self.psql.clone())
    }

    /// Makes a database with a name of the caller's choice, which stays.
    pub fn create_database(&self, name: &str) {
        self.psql("postgres", &format!("create database \"{}\"", name.replace('"', "\"\"")));
    }

    /// Runs statements, each in its own transaction unless they say otherwise; returns the rows, `|` between columns.
    #[track_caller]
    pub fn psql(&self, db: &str, sql: &str) -> String {
        self.try_psql(db, sql).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`PgServer::psql`], with what psql wrote to standard error instead of a panic.
    pub fn try_psql(&self, db: &str, sql: &str) -> Result<String, String> {
        psql(&self.psql, &self.url(db), sql)
    }

    /// Stops it in good order, breaking connections, and starts it again on the same port.
    pub fn restart(&self) {
        self.own().control(&["restart", "-m", "fast", "-w"]);
    }

    /// Stops it as a crash would: nothing is flushed, the next start recovers from the WAL.
    pub fn stop_immediate(&self) {
        self.own().control(&["stop", "-m", "immediate", "-w"]);
    }

    /// Starts it after a stop, on the same port.
    pub fn start_again(&self) {
        self.own().control(&["start", "-w"]);
    }

    /// Another server that follows this one, with all that it has.
    #[must_use]
    pub fn standby(&self) -> Self {
        let (bin, beside) = (self.own().bin.clone(), self.own().dir.parent().map(Path::to_owned));
        let copied = Instance::new(bin, beside, |standby| {
            let from =
                ["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port().to_string()].map(str::to_owned);
            run(standby.command("pg_basebackup").args(from).args([
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "--no-sync",
            ]))?;
            standby.configure(&format!("unix_socket_directories={}", standby.dir.display()))
        });
        let (instance, port) = copied.unwrap_or_else(|error| panic!("{error}"));
        Self { url: ServerUrl::local(port), psql: self.psql.clone(), instance: Some(instance) }
    }

    /// Makes a standby the one that is written to.
    pub fn promote(&self) {
        self.own().control(&["promote", "-w"]);
    }

    /// No file of the server grows beyond this many bytes, as if the disk were full; `None` lifts that. Its processes get half of a block on to
    /// the disk then, which PostgreSQL takes for a full one.
    #[cfg(target_os = "linux")]
    pub fn limit_files(&self, bytes: Option<u64>) {
        let own = self.own();
        let main = fs::read_to_string(own.data().join("postmaster.pid")).expect("a server that runs");
        let main = main.lines().next().expect("its process").to_owned();
        let children =
            fs::read_to_string(format!("/proc/{main}/task/{main}/children")).expect("its processes");
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        // The first one first: whom it starts from now on has its limit. By its own account, which may do so.
        for process in std::iter::once(main.as_str()).chain(children.split_whitespace()) {
            let mut command = own.account.command("prlimit");
            let limited = run(command.args(["--pid", process]).arg(format!("--fsize={limit}:unlimited")));
            // One that ended meanwhile needs none.
            let gone = !Path::new("/proc").join(process).exists();
            assert!(limited.is_ok() || gone, "process {process}: {limited:?}");
        }
    }

    /// The private server's folder, or none for a server of somebody else's.
    pub fn dir(&self) -> Option<&Path> {
        self.instance.as_ref().map(|instance| instance.dir.as_path())
    }

    fn own(&self) -> &Instance {
        // Other tests live on a shared server: stopping it under them must be an error, not an accident.
        self.instance.as_ref().expect("only a private server can be stopped: use PgServer::start()")
    }
}

/// What there is to stop and to remove.
#[derive(Debug)]
struct Instance {
    bin: PathBuf,
    account: Account,
    dir: PathBuf,
    watchdog: Watchdog,
}

impl Instance {
    fn start(bin: PathBuf, settings: &[&str]) -> Result<(Self, u16), String> {
        let waits_for_disk = settings.iter().any(|setting| setting.starts_with("fsync"));
        let root = if waits_for_disk { None } else { in_memory() };
        Self::new(bin, root, |instance| instance.init(settings))
    }

    /// Starts a server on the data that `make` makes, in `root` or where temporary files are.
    fn new(
        bin: PathBuf,
        root: Option<PathBuf>,
        make: impl FnOnce(&Self) -> Result<(), String>,
    ) -> Result<(Self, u16), String> {
        let account = Account::for_postgres()?;
        let dir = tempfile::Builder::new()
            .prefix("postbox-pg-")
            .tempdir_in(root.unwrap_or_else(|| account.temp_root()))
            .map_err(|error| format!("cannot make a temporary folder: {error}"))?
            .keep();
        let mut stop = account.command(bin.join("pg_ctl"));
        stop.args(["stop", "-m", "immediate", "-w", "-D"]).arg(dir.join("data"));
        let watchdog = Watchdog::spawn(&dir, &stop).inspect_err(|_| {
            fs::remove_dir_all(&dir).ok();
        })?;
        let instance = Self { bin, account, dir, watchdog };
        instance.account.own(&instance.dir)?;
        make(&instance)?;
        let port = instance.first_start()?;
        Ok((instance, port))
    }

    /// Makes the data directory and its configuration.
    fn init(&self, settings: &[&str]) -> Result<(), String> {
        // Locale C: messages in English, the same order of text on every machine.
        run(self.command("initdb").args([
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]))?;
        self.configure(&format!("unix_socket_directories={}", self.dir.display()))?;
        for setting in ["listen_addresses=127.0.0.1", "max_connections=200", "fsync=off", "timezone=UTC"] {
            self.configure(setting)?;
        }
        settings.iter().try_for_each(|setting| self.configure(setting))
    }

    /// Adds a setting; the last of a name counts.
    fn configure(&self, setting: &str) -> Result<(), String> {
        let (name, value) =
            setting.split_once('=').ok_or_else(|| format!("a setting is name=value, not {setting:?}"))?;
        OpenOptions::new()
            .append(true)
            .open(self.data().join("postgresql.conf"))
            .and_then(|mut file| writeln!(file, "{} = '{}'", name.trim(), value.trim().replace('\'', "''")))
            .map_err(|error| format!("cannot write postgresql.conf: {error}"))
    }

    fn first_start(&self) -> Result<u16, String> {
        let mut last = String::new();
        for _ in 0..PORT_TRIES {
            let port = free_port()?;
            self.configure(&format!("port={port}"))?;
            match self.try_control(&["start", "-w"]) {
                Ok(()) => return Ok(port),
                Err(error) => last = error,
            }
            if !last.contains("could not bind") {
                break;
            }
        }
        Err(last)
    }

    fn control(&self, args: &[&str]) {
        self.try_control(args).unwrap_or_else(|error| panic!("{error}"));
    }

    fn try_control(&self, args: &[&str]) -> Result<(), String> {
        let log = self.dir.join("log");
        let mut command = self.command("pg_ctl");
        command.args(args).args(["-t", "60"]);
        if args.first() != Some(&"stop") {
            command.arg("-l").arg(&log);
        }
        run(&mut command).map(|_| ()).map_err(|error| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(20)..].join("\n");
            format!("{error}\nthe server's log ends:\n{tail}")
        })
    }

    /// One of PostgreSQL's programs, pointed at our data.
    fn command(&self, program: &str) -> Command {
        let mut command = self.account.command(self.bin.join(program));
        // The server's account may not be allowed into the folder we are in.
        command.current_dir(&self.dir).arg("-D").arg(self.data());
        command
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // When this fails, be it that a test has stopped the server already, the watchdog sees to the rest.
        if self.try_control(&["stop", "-m", "fast", "-w"]).is_ok()
            || !self.data().join("postmaster.pid").exists()
        {
            self.watchdog.dismiss();
        }
    }
}

/// The folder with PostgreSQL's programs: [`BIN_ENV`], the newest of the system's packages, or `pg_config`'s.
pub fn find_binaries() -> Result<PathBuf, String> {
    if let Some(bin) = std::env::var_os(BIN_ENV).map(PathBuf::from) {
        return if complete(&bin) {
            Ok(bin)
        } else {
            Err(format!("{BIN_ENV} names a folder without initdb and pg_ctl"))
        };
    }
    let packaged = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    let newest = packaged.filter(|(_, bin)| complete(bin)).max().map(|(_, bin)| bin);
    newest
        .or_else(|| {
            let bin = run(Command::new("pg_config").arg("--bindir")).ok()?;
            Some(PathBuf::from(bin.trim())).filter(|bin| complete(bin))
        })
        .ok_or_else(|| {
            format!("no PostgreSQL server found: run `cargo xtask test`, which installs one, or set {BIN_ENV} or {URL_ENV}")
        })
}

/// A machine with the client package alone has the folder, but not these.
fn complete(bin: &Path) -> bool {
    ["initdb", "pg_ctl", "psql"].iter().all(|program| bin.join(program).exists())
}

pub(super) fn free_port() -> Result<u16, String> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|addr| addr.port())
        .map_err(|error| format!("no free port: {error}"))
}
