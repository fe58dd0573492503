//! What the tests of several sinks need.
#![allow(dead_code, reason = "each test takes what it needs of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use postbox_sinks::Options;

/// Options from pairs.
pub(crate) fn options(pairs: &[(&str, &str)]) -> Options {
    pairs.iter().fold(Options::new(), |options, (name, value)| options.set(*name, *value))
}

/// Certificates of an authority of our own, for 127.0.0.1 and for a client.
pub(crate) struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    /// Makes them by `openssl`.
    pub(crate) fn make() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let made = Self { dir };
        std::fs::write(made.path("san"), "subjectAltName=IP:127.0.0.1").map_err(|error| error.to_string())?;
        made.openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem")?;
        for name in ["server", "client"] {
            made.openssl(&format!(
                "req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ))?;
            made.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san -out {name}.pem"
            ))?;
        }
        Ok(made)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn openssl(&self, args: &str) -> Result<(), String> {
        let dir: &Path = self.dir.path();
        let output = Command::new("openssl").args(args.split(' ')).current_dir(dir).output();
        let output = output.map_err(|error| format!("cannot run openssl: {error}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}
