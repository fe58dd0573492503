//! An event for trying: it goes the way that all events of the table go, and its page shows how far it came.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use postbox_core::{Record, Survey as _, Topic};
use serde_json::json;
use uuid::Uuid;

use super::Shared;
use super::access::By;
use super::answer::{Answer, Refusal, with_status};
use super::fields::Fields;
use crate::cmd::enqueue::enqueue;

/// The topic where the request names none.
const TOPIC: Topic = Topic::from_static("postbox.relay.test.v1");

/// Writes it.
pub(super) async fn write(State(admin): Shared, Path(id): Path<String>, By(who): By, body: Body) -> Answer {
    let table = admin.table(&id)?;
    let fields = Fields::of_body(body, &[&["topic"]]).await?;
    let topic = match fields.text("topic")? {
        Some(given) => Topic::parse(given).map_err(|error| Refusal::request(error.to_string()))?,
        None => TOPIC,
    };
    let payload = json!({ "test": true, "by": who });
    let command = table
        .command("enqueue")
        .flag("topic", Some(&topic))
        .flag("payload", Some(json!({ "test": true })))
        .line();
    let tenant = admin.config.as_ref().map_or(Uuid::nil(), |config| config.general.default_tenant_id);
    let record = Record::builder(topic.clone()).json(&payload);
    let written = enqueue(&table.site.database, &table.admin, &table.name, tenant, record);
    let receipt = table.in_time(written).await?.map_err(|failure| Refusal::failure(&failure))?;
    // Its row says enough where there is no place for notes, as on a bare table.
    let what = json!({ "event_id": receipt.event_id, "topic": topic });
    if let Err(error) = table.admin.note(&who, "enqueue", &what).await {
        tracing::info!(table = %table.name, who, action = "enqueue", %what, %error, "operator");
    }
    admin.pulse.look();
    let sequence = receipt.sequence().map(|sequence| sequence.to_string());
    let value = json!({
        "id": table.id, "event_id": receipt.event_id, "topic": topic, "sequence": sequence, "command": command,
    });
    Ok(with_status(StatusCode::CREATED, &value))
}
