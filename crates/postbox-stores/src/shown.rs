//! Rows for people, of databases that keep ids as bytes and JSON as text. What somebody made up (an id of three bytes, text that is
//! none) is shown as well as it can be: it must not hide the others.

use postbox_core::{
    AuditEntry, BlockedAggregate, Content, DeadEvent, EventDetail, EventId, EventStatus, EventSummary, Json,
    TableRelay, TenantId,
};

use crate::audit::as_json;
use crate::row::Cells;

pub(crate) fn event_id(row: &impl Cells, place: usize) -> EventId {
    EventId(row.uuid(place).unwrap_or_default())
}

fn tenant_id(row: &impl Cells, place: usize) -> TenantId {
    TenantId(row.uuid(place).unwrap_or_default())
}

/// JSON as the table has it. The table does not check all of it: what is none is shown as a text.
fn json(row: &impl Cells, place: usize) -> Result<Option<Json>, sqlx::Error> {
    let read = |text: String| {
        Json::from_text(text.as_str())
            .or_else(|_| Json::from_value(&text))
            .unwrap_or_else(|_| Json::trusted("null"))
    };
    Ok(row.text(place)?.map(read))
}

pub(crate) fn status(row: &impl Cells, place: usize) -> Result<EventStatus, sqlx::Error> {
    let text = row.text(place)?.unwrap_or_default();
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// By the columns of `SUMMARY` in the store's `list.rs`.
pub(crate) fn summary(row: &impl Cells) -> Result<EventSummary, sqlx::Error> {
    Ok(EventSummary {
        event_id: event_id(row, 0),
        sequence: row.big_number(1)?.unwrap_or_default(),
        tenant_id: tenant_id(row, 2),
        topic: row.text(3)?.unwrap_or_default(),
        aggregate_type: row.text(4)?,
        aggregate_id: row.text(5)?,
        status: status(row, 6)?,
        attempts: row.number(7)?.unwrap_or_default(),
        created_at: row.known_time(8)?,
        available_at: row.known_time(9)?,
        published_at: row.time(10)?,
        dead_at: row.time(11)?,
        last_error: row.text(12)?,
    })
}

/// The same, with what only one event alone is shown with.
pub(crate) fn detail(row: &impl Cells, with_content: bool) -> Result<EventDetail, sqlx::Error> {
    let content = if with_content {
        Some(Content {
            payload: json(row, 26)?.unwrap_or_else(|| Json::trusted("null")),
            payload_raw: row.bytes(27)?,
            metadata: json(row, 28)?,
        })
    } else {
        None
    };
    Ok(EventDetail {
        summary: summary(row)?,
        locked_at: row.time(13)?,
        headers: json(row, 14)?,
        occurred_at: row.time(15)?,
        schema_id: row.text(16)?,
        schema_version: row.number(17)?,
        routing_key: row.text(18)?,
        traceparent: row.text(19)?,
        tracestate: row.text(20)?,
        locked_by: row.text(21)?,
        dlq_at: row.time(22)?,
        content_type: row.text(23)?,
        attempts_log: json(row, 24)?,
        sinks_done: row.text(25)?.and_then(|done| serde_json::from_str(&done).ok()),
        content,
    })
}

/// By the columns of the walk over dead events.
pub(crate) fn dead(row: &impl Cells) -> Result<DeadEvent, sqlx::Error> {
    Ok(DeadEvent {
        event_id: event_id(row, 0),
        tenant_id: tenant_id(row, 1),
        topic: row.text(2)?.unwrap_or_default(),
        aggregate_type: row.text(3)?,
        aggregate_id: row.text(4)?,
        sequence: row.big_number(5)?.unwrap_or_default(),
        attempts: row.number(6)?.unwrap_or_default(),
        created_at: row.known_time(7)?,
        dead_at: row.known_time(8)?,
        last_error: row.text(9)?,
    })
}

/// By the columns of `blocked_list.sql`.
pub(crate) fn blocked(row: &impl Cells) -> Result<BlockedAggregate, sqlx::Error> {
    Ok(BlockedAggregate {
        tenant_id: tenant_id(row, 0),
        aggregate_type: row.text(1)?,
        aggregate_id: row.text(2)?,
        waiting: row.count(3)?,
        event_id: event_id(row, 4),
        sequence: row.big_number(5)?.unwrap_or_default(),
        topic: row.text(6)?.unwrap_or_default(),
        dead_at: row.known_time(7)?,
        last_error: row.text(8)?,
    })
}

/// An entry of the audit log.
pub(crate) fn audited(row: &impl Cells) -> Result<AuditEntry, sqlx::Error> {
    Ok(AuditEntry {
        id: row.big_number(0)?.unwrap_or_default(),
        at: row.known_time(1)?,
        who: row.text(2)?.unwrap_or_default(),
        action: row.text(3)?.unwrap_or_default(),
        what: as_json(row.text(4)?.unwrap_or_default()),
        events: row.big_number(5)?.unwrap_or_default(),
    })
}

/// A table's row in `postbox_relay`.
pub(crate) fn relay(row: &impl Cells) -> Result<TableRelay, sqlx::Error> {
    Ok(TableRelay {
        leader: row.text(0)?,
        epoch: row.big_number(1)?.unwrap_or_default(),
        strategy: row.text(2)?,
        paused_at: row.time(3)?,
        paused_by: row.text(4)?,
        paused_reason: row.text(5)?,
    })
}
