//! A MariaDB server of our own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::account::Account;
use super::broker::{Plan, find_program, free_addr, server};
use super::instance::{Launch, Ready};
use super::options::ServerOptions;
use super::room::{in_memory, on_disk};
use super::run;

/// The server's program, of the package `mariadb-server`.
pub const SERVER: &str = "mariadbd";

server! {
    /// A MariaDB server on which `root` needs no password. It does not wait for the disk unless told to
    /// (`innodb_flush_method=fsync` as a setting): a crash of the server loses nothing all the same, one of the machine does.
    ///
    /// Settings are lines of its configuration, `name=value`; the last of a name counts.
    MariaDbServer, "POSTBOX_TEST_MARIADB_URL", plan, root
}

impl MariaDbServer {
    /// Makes a fresh database, to be dropped with the value returned.
    pub fn database(&self) -> MariaDb {
        MariaDb::create(self.url(), self.addr())
    }
}

fn root(options: &ServerOptions) -> PathBuf {
    let waits_for_disk = options.settings.iter().any(|setting| setting.starts_with("innodb_flush_method"));
    if waits_for_disk { on_disk(options) } else { in_memory().unwrap_or_else(|| on_disk(options)) }
}

fn plan(dir: &Path, options: &ServerOptions) -> Result<Plan, String> {
    options.without_token("MariaDB")?;
    options.without_tls("MariaDB")?;
    if options.login.is_some() || options.max_message.is_some() {
        return Err("MariaDB here has no login and no limit of messages".to_owned());
    }
    let (program, install) = (find_program(SERVER)?, find_program("mariadb-install-db")?);
    let account = Account::for_mariadb()?;
    // Its own user must get there, and own what is in it.
    account.own(dir)?;
    let (addr, data) = (free_addr()?, dir.join("data"));
    let file = dir.join("my.cnf");
    let lines = [
        "[mariadbd]".to_owned(),
        format!("datadir={}", data.display()),
        format!("bind-address={}", addr.ip()),
        format!("port={}", addr.port()),
        format!("socket={}", dir.join("s.sock").display()),
        format!("tmpdir={}", dir.display()),
        "max_connections=400".to_owned(),
        // Small, and quick to start: tests are many and tables are not.
        "innodb_buffer_pool_size=64M".to_owned(),
        "innodb_log_file_size=32M".to_owned(),
        // As in production, but for the wait: against a crash of the process, a write is enough.
        "innodb_flush_log_at_trx_commit=1".to_owned(),
        "innodb_flush_method=nosync".to_owned(),
        "innodb_doublewrite=0".to_owned(),
        // The server aborts on any error of the kernel's rings, which not every sandbox lets a process use.
        "innodb_use_native_aio=0".to_owned(),
        "performance_schema=0".to_owned(),
        "skip-name-resolve".to_owned(),
        "skip-log-bin".to_owned(),
    ];
    let lines: Vec<String> = lines.into_iter().chain(options.settings.iter().cloned()).collect();
    fs::write(&file, lines.join("\n") + "\n")
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    run(account
        .command(install)
        .arg(format!("--defaults-file={}", file.display()))
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .arg(format!("--datadir={}", data.display()))
        .current_dir(dir))?;
    let server = account.command(program);
    let mut command = vec![server.get_program().to_owned()];
    command.extend(server.get_args().map(ToOwned::to_owned));
    command.push(format!("--defaults-file={}", file.display()).into());
    Ok(Plan {
        launch: Launch {
            command,
            env: Vec::new(),
            ready: Ready::Logs("ready for connections"),
            limit: Duration::from_mins(1),
            sick: None,
        },
        url: format!("mysql://root@{addr}/"),
        also: None,
        addr,
    })
}

/// A fresh database, dropped together with this value.
#[derive(Debug)]
pub struct MariaDb {
    /// Its URL.
    pub url: String,
    /// Its name, unique on the server.
    pub name: String,
    addr: SocketAddr,
    client: PathBuf,
}

impl MariaDb {
    fn create(server: &str, addr: SocketAddr) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let client = find_program("mariadb").unwrap_or_else(|error| panic!("{error}"));
        let db = Self { url: format!("{}/{name}", server.trim_end_matches('/')), name, addr, client };
        db.client("", &format!("drop database if exists {0}; create database {0}", db.name))
            .unwrap_or_else(|error| panic!("cannot create a test database: {error}"));
        db
    }

    /// Runs statements; returns the rows, tabs between columns.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`MariaDb::sql`], with what the client wrote to standard error instead of a panic.
    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        self.client(&self.name, sql)
    }

    /// The database's URL with another address in it: a [`Proxy`](crate::Proxy)'s.
    pub fn url_through(&self, proxy: SocketAddr) -> String {
        self.url.replacen(&self.addr.to_string(), &proxy.to_string(), 1)
    }

    /// Where the server itself listens: a proxy's upstream.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn client(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut command = Command::new(&self.client);
        command
            .args(["--no-defaults", "--batch", "--skip-column-names", "--user=root", "--protocol=tcp"])
            .args(["--default-character-set=utf8mb4", &format!("--host={}", self.addr.ip())])
            .args([&format!("--port={}", self.addr.port()), &format!("--execute={sql}")])
            .stdin(Stdio::null());
        if !database.is_empty() {
            command.arg(database);
        }
        run(&mut command).map(|out| out.trim_end_matches('\n').to_owned())
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        // A server that is already gone took the database with it.
        self.client("", &format!("drop database if exists {}", self.name)).ok();
    }
}
