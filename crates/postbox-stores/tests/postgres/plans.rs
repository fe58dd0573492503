//! Plans that were made while the table was empty serve it when it is full.
//!
//! To read the whole of an empty table costs nothing, and a plan that does so is kept: what it costs later is counted here, in entries of
//! indexes, and not in time.

use std::time::Duration;

use postbox_core::letter::{LetterRequest, LetterVerdict};
use postbox_core::redact::Summary;
use postbox_core::store::{OnDead, Order, Settled, Settlement, Verdict};
use postbox_core::{History, Store as _};
use postbox_stores::postgres::{PgStore, Strategy};
use postbox_testkit::eventually;
use postbox_testkit::suite::{claim, settle_all};

use crate::common::SOON;
use crate::subject::{Shape, Table};

const WAITING: usize = 20_000;
const BATCH: usize = 100;
const BATCHES: usize = 10;
/// What is read for an event at most: by the claim, by the one that reads ahead, by the settle, each with what is not cleared away yet.
const READ_PER_EVENT: i64 = 40;

fn write(table: &Table, events: usize) {
    table.db.psql(&format!(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
         SELECT '00000000-0000-0000-0000-000000000000', 'a.b.c.v1', '{{}}', gen_random_uuid() FROM generate_series(1, {events})"
    ));
}

fn read(table: &Table) -> i64 {
    let sql = "SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname = 'org_outbox'";
    table.db.psql(sql).parse().unwrap()
}

/// Claims a batch and settles it: the first of it in this way, the others as delivered.
async fn work(store: &PgStore, first: Option<Verdict>) -> usize {
    let claim = claim(store, BATCH).await;
    let mut settlements: Vec<Settlement> = settle_all(&claim, &Verdict::Delivered);
    if let (Some(verdict), Some(settlement)) = (first, settlements.first_mut()) {
        settlement.verdict = verdict;
        store.extend(vec![settlement.lease.clone()]).await.unwrap();
    }
    assert!(store.settle(&settlements).await.unwrap().lost.is_empty());
    settlements.len()
}

fn dead() -> Verdict {
    Verdict::Dead { reason: Summary::new("no", 64) }
}

async fn bury_letters(store: &PgStore) {
    let ask = LetterRequest { limit: BATCH, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    let letters = store.letters(ask).await.unwrap();
    let sent = letters.into_iter().map(|letter| (letter.lease, LetterVerdict::Sent)).collect();
    assert_eq!(store.settle_letters(sent).await.unwrap(), Settled::default());
}

async fn plans_of_an_empty_table_serve_a_full_one(table: Table, store: PgStore) {
    // No vacuum of the server's own comes later and has the plans made anew.
    table.db.psql("ALTER TABLE org_outbox SET (autovacuum_enabled = off)");
    table.db.psql("VACUUM ANALYZE org_outbox");
    let letters = table.shape != Shape::Bare;
    // Makes all the plans.
    for first in [None, Some(dead())] {
        write(&table, 2);
        eventually("the first events", SOON, async || work(&store, first.clone()).await > 0).await;
        if letters {
            bury_letters(&store).await;
        }
    }
    let before = read(&table);
    write(&table, WAITING);
    let mut done = 0;
    for batch in 0..BATCHES {
        done += work(&store, (batch % 2 == 0).then(dead)).await;
        if letters {
            bury_letters(&store).await;
        }
    }
    assert!(done >= BATCH * BATCHES / 2, "{done}");
    // Sessions tell of what they have read when they end.
    store.close().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually("the end of the sessions", SOON, async || table.db.psql(sessions) == "0").await;
    let read = read(&table) - before;
    assert!(
        read <= READ_PER_EVENT * i64::try_from(done).unwrap(),
        "{read} entries were read for {done} events"
    );
}

macro_rules! tests {
    ($($name:ident: $shape:ident, $strategy:ident, $history:ident $(, $order:expr)?;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let table = Table::new(Shape::$shape).await;
            let store = PgStore::builder(table.relay.clone(), table.name.clone())
                .strategy(Strategy::$strategy)
                .history(History::$history)
                $(.order($order))?
                .build();
            Box::pin(plans_of_an_empty_table_serve_a_full_one(table, store)).await;
        })*
    };
}

tests! {
    of_an_owner: Migrated, Owner, Keep;
    of_an_owner_that_moves: Moving, Owner, Move;
    of_an_owner_that_deletes: Migrated, Owner, None;
    of_an_owner_in_order: Ordered, Owner, Keep, Order::Aggregate(OnDead::Block);
    of_leases: Migrated, Lease, Keep;
    of_leases_that_move: Moving, Lease, Move;
    of_leases_that_delete: Migrated, Lease, None;
    of_leases_in_order: Ordered, Lease, Keep, Order::Aggregate(OnDead::Block);
    of_leases_of_a_bare_table: Bare, Lease, Keep;
}
