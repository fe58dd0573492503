//! The account a server runs under: database servers refuse to run as root, and tests often are root.

use std::ffi::OsStr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// Who runs the server's programs and owns its files.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    /// None: ourselves.
    other: Option<Other>,
}

#[derive(Debug, Clone)]
struct Other {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Account {
    /// Ourselves, or, for root, the account that the PostgreSQL package made.
    pub(crate) fn for_postgres() -> Result<Self, String> {
        Self::of_package("postgres", "PostgreSQL")
    }

    /// Ourselves, or, for root, the account that the MariaDB package made.
    pub(crate) fn for_mariadb() -> Result<Self, String> {
        Self::of_package("mysql", "MariaDB")
    }

    fn of_package(account: &'static str, server: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self { other: None });
        }
        // `nobody` stands in where the server came from elsewhere than a system package.
        [account, "nobody"]
            .into_iter()
            .find_map(|name| Some(Other { name, uid: id("-u", name)?, gid: id("-g", name)? }))
            .map(|other| Self { other: Some(other) })
            .ok_or_else(|| {
                format!("root cannot run {server}, and there is no account `{account}` or `nobody`")
            })
    }

    /// A folder in which this account's servers can live.
    pub(crate) fn temp_root(&self) -> PathBuf {
        let own = std::env::temp_dir();
        // Another account may not reach our TMPDIR, and a socket's path must stay under 108 bytes.
        if self.other.is_some() || own.as_os_str().len() > 60 { PathBuf::from("/tmp") } else { own }
    }

    /// Gives a path to this account.
    pub(crate) fn own(&self, path: &Path) -> Result<(), String> {
        let Some(other) = &self.other else { return Ok(()) };
        chown(path, Some(other.uid), Some(other.gid))
            .map_err(|error| format!("cannot give {} to {}: {error}", path.display(), other.name))
    }

    /// A command run by this account.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.other {
            None => Command::new(program),
            Some(other) => {
                // Not `runuser`: it opens a session, which has limits of its own, of open files above all.
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={}", other.uid)).arg(format!("--regid={}", other.gid));
                command.args(["--init-groups", "--"]).arg(program);
                command
            }
        }
    }
}

fn id(flag: &str, name: &str) -> Option<u32> {
    run(Command::new("id").args([flag, name])).ok()?.trim().parse().ok()
}
