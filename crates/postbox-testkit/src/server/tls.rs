//! Certificates for a private broker, of an authority of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::broker::find_program;
use super::run;

/// The files that a server needs to speak TLS, and a client to trust it.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    /// Where they are in a broker's folder.
    pub(crate) fn of(dir: &Path) -> Self {
        let file = |name| dir.join(name);
        Self { authority: file("ca.pem"), certificate: file("server.pem"), key: file("server.key") }
    }

    /// Makes them, for `127.0.0.1` and `localhost`.
    pub(crate) fn make(dir: &Path) -> Result<Self, String> {
        let (openssl, made) = (find_program("openssl")?, Self::of(dir));
        let authority_key = dir.join("ca.key");
        let request = |key: &Path, to: &Path| {
            let mut command = Command::new(&openssl);
            command.args(["req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"]);
            command.args(["-pkeyopt", "ec_paramgen_curve:P-256", "-keyout"]).arg(key).arg("-out").arg(to);
            command
        };
        run(request(&authority_key, &made.authority).args(["-subj", "/CN=Postbox tests"]))?;
        run(request(&made.key, &made.certificate)
            .arg("-CA")
            .arg(&made.authority)
            .arg("-CAkey")
            .arg(&authority_key)
            .args(["-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"])
            // Clients take no authority for a server.
            .args(["-addext", "basicConstraints=critical,CA:FALSE"]))?;
        Ok(made)
    }
}
