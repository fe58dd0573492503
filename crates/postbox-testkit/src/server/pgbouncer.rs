//! A PgBouncer of our own, in transaction mode, in front of a PostgreSQL server.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::account::Account;
use super::postgres::{PgServer, free_port};
use super::run;
use super::watchdog::Watchdog;

/// Another process may take the free port between our look and the pooler's.
const PORT_TRIES: usize = 5;

/// How long it may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A pooler that gives each transaction whatever server process is free. It ends with this value, or with this process.
#[derive(Debug)]
pub struct PgBouncer {
    addr: SocketAddr,
    _instance: Watchdog,
}

impl PgBouncer {
    /// The pooler that all tests of this process share, in front of [`PgServer::shared`].
    pub fn shared() -> &'static Self {
        Self::try_shared().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`PgBouncer::shared`], with the reason instead of a panic.
    pub fn try_shared() -> Result<&'static Self, String> {
        static SHARED: OnceLock<Result<PgBouncer, String>> = OnceLock::new();
        SHARED.get_or_init(|| PgBouncer::in_front_of(PgServer::try_shared()?)).as_ref().map_err(Clone::clone)
    }

    /// Starts one in front of a server.
    pub fn in_front_of(server: &PgServer) -> Result<Self, String> {
        let program = find_program()?;
        let account = Account::for_postgres()?;
        let mut last = String::new();
        for _ in 0..PORT_TRIES {
            match Self::start(&program, &account, server, free_port()?) {
                Ok(pooler) => return Ok(pooler),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn start(program: &Path, account: &Account, server: &PgServer, port: u16) -> Result<Self, String> {
        let dir = tempfile::Builder::new()
            .prefix("postbox-bouncer-")
            .tempdir_in(account.temp_root())
            .map_err(|error| format!("cannot make a temporary folder: {error}"))?
            .keep();
        account.own(&dir)?;
        let mut stop = Command::new("sh");
        stop.args(["-c", r#"kill -INT "$(cat "$0/pid")" && sleep 0.2"#]).arg(&dir);
        let watchdog = Watchdog::spawn(&dir, &stop)?;
        let file = dir.join("pgbouncer.ini");
        fs::write(&file, configuration(&dir, server.addr(), port))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        run(account.command(program).args(["-q", "-d"]).arg(&file).current_dir(&dir))?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let started = Instant::now();
        while TcpStream::connect(addr).is_err() {
            if started.elapsed() > START_LIMIT {
                let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
                return Err(format!("PgBouncer does not listen:\n{log}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { addr, _instance: watchdog })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Few server processes, so that clients share them and a transaction's next may be another.
fn configuration(dir: &Path, server: SocketAddr, port: u16) -> String {
    let dir = dir.display();
    format!(
        "[databases]\n\
         * = host={} port={} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = 4\n\
         server_round_robin = 1\n\
         max_client_conn = 500\n\
         ignore_startup_parameters = extra_float_digits\n\
         pidfile = {dir}/pid\n\
         logfile = {dir}/log\n",
        server.ip(),
        server.port()
    )
}

/// The program, where packages put it.
pub fn find_program() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join("pgbouncer"))
        .find(|program| program.exists())
        .ok_or_else(|| "no PgBouncer found: run `cargo xtask test`, which installs one".to_owned())
}
