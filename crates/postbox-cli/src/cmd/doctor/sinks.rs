//! Whether sinks can be reached: a connection is made and closed again, and nothing is sent.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use postbox_core::{Code, Finding};
use postbox_sinks::Options;
use postbox_sinks::address::Address;
use postbox_sinks::url::default_port;
use tokio::net::TcpStream;

use crate::config::{Config, Sink};

/// A destination that takes longer than this to answer is not one to deliver to.
const PATIENCE: Duration = Duration::from_secs(3);

/// Tries all of them side by side.
pub(crate) async fn check(config: &Config) -> Vec<Finding> {
    join_all(config.sinks.iter().map(reach)).await.into_iter().flatten().collect()
}

async fn reach(sink: &Sink) -> Option<Finding> {
    let (url, name) = (sink.url.reveal(), &sink.name);
    if let Some(path) = url.strip_prefix("file:") {
        return Some(folder(name, path.strip_prefix("//").unwrap_or(path)));
    }
    // One whose URL is wrong was told of before, and one whose host depends on the event cannot be tried.
    let address = Address::parse(url, &mut Options::new()).ok()?;
    if default_port(&address.scheme).is_none()
        || address.hosts.iter().any(|host| host.name.contains(['{', '}']))
    {
        return None;
    }
    let hosts = address.hosts_with_port();
    let tried = join_all(hosts.iter().map(|host| connect(host))).await;
    let failed: Vec<String> = hosts
        .iter()
        .zip(&tried)
        .filter_map(|(host, tried)| Some(format!("{host}: {}", tried.as_ref().err()?)))
        .collect();
    let fix =
        "check that it runs, its address, and the network between; its events wait and spend no attempt";
    Some(if failed.is_empty() {
        Finding::good("sink", format!("sink {name} can be reached at {}", hosts.join(", ")))
    } else if failed.len() < hosts.len() {
        let what = format!("sink {name} can be reached, but not everywhere: {}", failed.join("; "));
        Finding::doubtful("sink", Code::SinkUnreachable, what, fix)
    } else {
        let what = format!("sink {name} cannot be reached: {}", failed.join("; "));
        Finding::wrong("sink", Code::SinkUnreachable, what, fix)
    })
}

async fn connect(host: &str) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, TcpStream::connect(host)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

/// A file needs its folder; the file itself is made when the first event comes.
fn folder(name: &str, path: &str) -> Finding {
    let path = Path::new(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        let what = format!("sink {name} cannot be written: {} is a folder", path.display());
        return Finding::wrong("sink", Code::SinkUnreachable, what, "name a file in the sink's URL");
    }
    if !folder.is_dir() {
        let what = format!("sink {name} cannot be written: {} is not a folder", folder.display());
        let fix = format!("mkdir -p {}", folder.display());
        return Finding::wrong("sink", Code::SinkUnreachable, what, fix);
    }
    Finding::good("sink", format!("sink {name}: its folder {} is there", folder.display()))
}
