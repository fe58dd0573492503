//! Writes under the eyes of an oracle, while relays are killed.

use std::time::Duration;

use postbox_testkit::Oracle;
use uuid::Uuid;

/// Writes transactions of some events until so many are committed, never more than `allowed` says by then; every seventh is rolled back.
/// `transact` gets the transaction's number, its events, and whether to commit.
pub(crate) async fn write(
    oracle: &Oracle,
    events: usize,
    allowed: impl Fn() -> usize,
    mut transact: impl AsyncFnMut(usize, &[Uuid], bool),
) {
    let (mut written, mut n) = (0, 0);
    while written < events {
        if written >= allowed() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        n += 1;
        let ids: Vec<Uuid> = (0..=n % 20).map(|_| Uuid::now_v7()).collect();
        let commits = n % 7 != 0;
        transact(n, &ids, commits).await;
        for id in &ids {
            if commits { oracle.committed(*id) } else { oracle.rolled_back(*id) }
        }
        written += if commits { ids.len() } else { 0 };
    }
}
