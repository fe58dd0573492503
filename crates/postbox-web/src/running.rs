//! How many handlers run.

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Running(watch::Sender<usize>);

impl Default for Running {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

/// One handler that runs, until it is dropped.
#[derive(Debug)]
pub(crate) struct One(watch::Sender<usize>);

impl Running {
    pub(crate) fn one(&self) -> One {
        self.0.send_modify(|running| *running += 1);
        One(self.0.clone())
    }

    /// Ends when none runs.
    pub(crate) async fn idle(&self) {
        // Fails only without a sender, and there is this one.
        let _ = self.0.subscribe().wait_for(|running| *running == 0).await;
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}
