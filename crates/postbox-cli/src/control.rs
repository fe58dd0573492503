//! The control thread: signals, HTTP and the dashboard, on a runtime of their own.
//!
//! Whatever keeps the relays' runtime busy, health checks are answered and a second signal ends the program.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::admin::{self, Setup};
use crate::http::{self, Endpoints};
use crate::report::{Failure, Problem};

/// How long the same signal again counts as the first.
const ECHO: Duration = Duration::from_millis(300);

/// What a shell shows for a program that was interrupted.
const INTERRUPTED: i32 = 130;

/// Starts the thread. The first signal asks for a stop through `stop`, the second ends the process at once.
pub(crate) fn start(
    listener: Option<TcpListener>,
    endpoints: Endpoints,
    dashboard: Option<Setup>,
    stop: watch::Sender<bool>,
) -> Result<(), Failure> {
    let failed = |error: &std::io::Error| {
        let next = "check the limits of processes and open files of this user (ulimit -a)";
        Failure::from(Problem::system("the control thread cannot start", error, next))
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
    // Here and not on the thread: a signal right after the start shall find its handler.
    let signals = {
        let _inside = runtime.enter();
        let terminate = signal(SignalKind::terminate());
        terminate.and_then(|terminate| Ok((terminate, signal(SignalKind::interrupt())?)))
    };
    let (mut terminate, mut interrupt) = signals.map_err(|error| failed(&error))?;
    let thread = std::thread::Builder::new().name("postbox-control".to_owned());
    let spawned = thread.spawn(move || {
        runtime.block_on(async {
            if let Some(listener) = listener {
                tokio::spawn(http::serve(listener, endpoints));
            }
            if let Some(dashboard) = dashboard {
                tokio::spawn(admin::serve(dashboard));
            }
            let first = next_of(&mut terminate, &mut interrupt).await;
            let at = Instant::now();
            tracing::info!("{first}: stopping; again to stop at once");
            stop.send_replace(true);
            let name = loop {
                let next = next_of(&mut terminate, &mut interrupt).await;
                if !is_echo(first, next, at.elapsed()) {
                    break next;
                }
            };
            tracing::warn!("{name} again: stopped at once, what was in flight will be sent again");
            std::process::exit(INTERRUPTED);
        });
    });
    spawned.map(drop).map_err(|error| failed(&error))
}

/// Some tools send a signal to a process and then to its group: that is one wish, not two.
fn is_echo(first: &str, next: &str, after: Duration) -> bool {
    next == first && after <= ECHO
}

async fn next_of(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

#[cfg(test)]
mod tests {
    use super::{ECHO, is_echo};
    use std::time::Duration;

    #[test]
    fn only_the_same_signal_at_once_is_an_echo() {
        assert!(is_echo("SIGTERM", "SIGTERM", Duration::from_millis(1)));
        assert!(!is_echo("SIGTERM", "SIGINT", Duration::from_millis(1)));
        assert!(!is_echo("SIGTERM", "SIGTERM", ECHO * 2));
    }
}
