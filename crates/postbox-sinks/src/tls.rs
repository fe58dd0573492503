//! [`TlsFiles`]: the files that a connection with TLS may need.

use std::path::PathBuf;

use crate::options::Reader;

/// Certificates as files in PEM, from the options `tls_ca`, `tls_cert` and `tls_key`. The server's certificate is always
/// checked: against `tls_ca` where it is given, else against the machine's own roots (RabbitMQ: against Mozilla's, and `tls_ca` beside them).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The roots that the server's certificate is checked against.
    pub(crate) ca: Option<PathBuf>,
    /// The client's own certificate and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Reads the options; `encrypted` tells whether the URL's scheme asks for TLS at all.
    pub(crate) fn from_options(options: &mut Reader, encrypted: bool, scheme: &str) -> Self {
        let given = ["tls_ca", "tls_cert", "tls_key"].into_iter().find(|name| options.has(name));
        if let Some(name) = given.filter(|_| !encrypted) {
            options.problem(
                name,
                "is given for a connection without TLS",
                &format!("write {scheme}:// in the URL"),
            );
        }
        let ca = options.file("tls_ca");
        let half = options.has("tls_cert") != options.has("tls_key");
        let client = options.file("tls_cert").zip(options.file("tls_key"));
        if half {
            options.problem("tls_cert", "and tls_key belong together", "give both, or neither");
        }
        Self { ca, client }
    }
}
