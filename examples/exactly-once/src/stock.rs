//! The stock: reduced once for each order, however often the broker delivers it.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::pull, stream};
use postbox::consumers::{Consumer, Message, NatsSource};
use postbox::sqlite::{SqlxSqlite, migrate};
use postbox::{Backoff, ConsumerName, HandlerResult, Inbox, OutboxTransaction, TableName};

use crate::Result;
use crate::settings::Settings;
use crate::shop::OrderPlaced;

static STOCK: ConsumerName = ConsumerName::from_static("stock");
/// Enough for every order.
pub(crate) const SHELF: i64 = 1_000_000;

fn table() -> Result<TableName> {
    Ok("stock_outbox".parse()?)
}

/// Makes the tables, the streams and the consumer; once, before anybody comes.
pub(crate) async fn prepare(settings: &Settings) -> Result<()> {
    let pool = settings.stock().await?;
    let extras = migrate::Extras { inbox: true, ..migrate::Extras::default() };
    migrate::up_with(&mut *pool.acquire().await?, &table()?, extras, |_| {}).await?;
    for sql in [
        "CREATE TABLE stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL)",
        // On purpose without a unique order: were an order's effect to happen twice, it would be here twice.
        "CREATE TABLE movements (order_id INTEGER NOT NULL, pieces INTEGER NOT NULL)",
    ] {
        sqlx::query(sql).execute(&pool).await?;
    }
    sqlx::query("INSERT INTO stock VALUES ('tea', ?1)").bind(SHELF).execute(&pool).await?;
    let jetstream = jetstream::new(async_nats::connect(settings.nats()?).await?);
    let name = &settings.name;
    for (name, subject) in
        [(name.clone(), format!("{name}.>")), (format!("{name}-dead"), format!("dead.{name}"))]
    {
        jetstream
            .create_stream(stream::Config { name, subjects: vec![subject], ..Default::default() })
            .await?;
    }
    consumer(settings, &jetstream).await.map(drop)
}

/// The client's own consumer; a delivery that nobody acknowledges within 3 s is repeated.
pub(crate) async fn consumer(
    settings: &Settings,
    jetstream: &jetstream::Context,
) -> Result<jetstream::consumer::PullConsumer> {
    let config = pull::Config {
        durable_name: Some("stock".to_owned()),
        ack_wait: Duration::from_secs(3),
        ..Default::default()
    };
    Ok(jetstream.get_stream(&settings.name).await?.get_or_create_consumer("stock", config).await?)
}

pub(crate) async fn run(settings: &Settings) -> Result<()> {
    let (pool, inbox) = (settings.stock().await?, Inbox::new(table()?));
    // Tries again until the broker is there.
    let connect = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let jetstream = jetstream::new(connect.connect(settings.nats()?).await?);
    let pull = loop {
        match consumer(settings, &jetstream).await {
            Ok(pull) => break pull,
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    };
    let source = NatsSource::new(jetstream, pull).dead_letters(format!("dead.{}", settings.name));
    let backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1));
    Consumer::new(&pool, inbox, STOCK.clone(), reduce)
        .backoff(backoff)
        .run(source, std::future::pending())
        .await?;
    Ok(())
}

/// The effect. The inbox's row is in the same transaction, and who has acknowledged nothing has this called again only if it was rolled back.
async fn reduce(tx: &mut OutboxTransaction<SqlxSqlite>, message: &Message) -> HandlerResult {
    let order: OrderPlaced = message.json()?;
    let reduce = "UPDATE stock SET pieces = pieces - ?1 WHERE item = 'tea'";
    sqlx::query(reduce).bind(order.pieces).execute(&mut ***tx).await?;
    let write_down = "INSERT INTO movements (order_id, pieces) VALUES (?1, ?2)";
    sqlx::query(write_down).bind(order.order).bind(order.pieces).execute(&mut ***tx).await?;
    Ok(())
}
