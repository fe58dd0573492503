//! `postbox enqueue`: one event by hand, for trying.

use std::io::Read as _;

use postbox_core::{Code, Enqueued, Layout, Outbox, Receipt, Record, RecordBuilder, TableName, Topic};
use postbox_stores::any::AnyAdmin;
use serde_json::json;
use uuid::Uuid;

use super::given::{self, wrong};
use super::{block_on, tables, within_patience};
use crate::cli::Call;
use crate::database::Database;
use crate::report::{Exit, Failure, Problem};
use crate::say::{say, say_json};

/// More than any limit of an outbox, less than what hurts: the limit's own error shall name the real size.
const MOST_INPUT: u64 = 64 << 20;

/// Writes one event in a transaction of its own and prints its receipt.
pub(crate) fn run(call: &Call<'_>) -> Result<Exit, Failure> {
    let tables = tables(&call.config)?;
    let [table] = tables.as_slice() else {
        let message = format!("an event goes into one table, {} are named", tables.len());
        return Err(Problem::new(Code::ConfigInvalid, message).next("give --table once").into());
    };
    let record = record(call)?;
    let database = Database::of(&call.config)?;
    block_on(within_patience(write(call, &database, table, record)))
}

async fn write(
    call: &Call<'_>,
    database: &Database,
    table: &TableName,
    record: RecordBuilder,
) -> Result<Exit, Failure> {
    let admin = database.admin(table, &call.config);
    let receipt = enqueue(database, &admin, table, call.config.general.default_tenant_id, record).await?;
    let (id, sequence) = (receipt.event_id, receipt.sequence());
    let (result, text) = match receipt.enqueued {
        Enqueued::Written(sequence) => ("written", format!("enqueued {id} in {table}, sequence {sequence}")),
        Enqueued::Duplicate(sequence) => {
            ("duplicate", format!("{id} is in {table} already, sequence {sequence}; nothing was written"))
        }
        Enqueued::Suppressed => ("suppressed", format!("{id} was suppressed; nothing was written")),
    };
    if call.json {
        let table = table.to_string();
        say_json(
            &json!({ "event_id": id.to_string(), "table": table, "result": result, "sequence": sequence }),
        )?;
    } else {
        say(&text)?;
    }
    Ok(Exit::Done)
}

/// Writes one event in a transaction of its own.
pub(crate) async fn enqueue(
    database: &Database,
    admin: &AnyAdmin,
    table: &TableName,
    tenant: Uuid,
    record: RecordBuilder,
) -> Result<Receipt, Failure> {
    // First: it names an address where nobody is at once, and a pool would try until its time is over.
    let mut connection = database.connect().await?;
    let layout = admin.layout().await.map_err(|error| Problem::about(table, &error))?;
    let outbox = match layout {
        Layout::Full => Outbox::new(table.clone()),
        Layout::Bare => Outbox::bare(table.clone()),
    };
    let receipt = connection.enqueue(&outbox.default_tenant(tenant), record).await;
    receipt.map_err(|error| Problem::of_enqueue(table, error).into())
}

fn record(call: &Call<'_>) -> Result<RecordBuilder, Failure> {
    let topic = Topic::parse(call.text("topic").unwrap_or_default());
    let form = "write it as <module>.<aggregate>.<event>.vN, such as org.organization.created.v1";
    let topic = topic.map_err(|error| Problem::new(error.code(), error).next(form))?;
    let mut record = Record::builder(topic).raw_json(payload(call.text("payload").unwrap_or_default())?);
    if let Some(given) = call.text("event-id") {
        let id =
            Uuid::try_parse(given).map_err(|_| wrong("event-id", given, "give a UUID, or leave it out"))?;
        record = record.event_id(id);
    }
    if let Some(given) = given::text(call, "tenant")? {
        record = match Uuid::try_parse(given) {
            Ok(id) => record.tenant(id),
            Err(_) => record.tenant_name(given),
        };
    }
    if let Some(given) = call.text("aggregate") {
        let parts = given.split_once('/').filter(|(kind, id)| !kind.is_empty() && !id.is_empty());
        let (kind, id) =
            parts.ok_or_else(|| wrong("aggregate", given, "give type and id, such as organization/42"))?;
        record = record.aggregate(kind, id);
    }
    for given in call.matches.get_many::<String>("header").into_iter().flatten() {
        let parts = given.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, value) =
            parts.ok_or_else(|| wrong("header", given, "give name and value, such as region=eu"))?;
        record = record.header(name, value);
    }
    if let Some(delay) = given::duration(call, "delay")? {
        record = record.delay(delay);
    }
    Ok(record)
}

fn payload(given: &str) -> Result<String, Failure> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MOST_INPUT).read_to_end(&mut bytes).map_err(|error| {
        Problem::system("standard input cannot be read", &error, "give the payload on the command line")
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let message = format!("the payload is not UTF-8 after byte {}", error.utf8_error().valid_up_to());
        Problem::new(Code::PayloadInvalid, message).into()
    })
}
