//! Rows of databases that keep ids as bytes.

use diesel::result::Error;
use diesel::sql_types::{BigInt, Binary};
use diesel::{QueryResult, QueryableByName};
use uuid::Uuid;

use crate::tx::EventRow;

#[derive(QueryableByName)]
pub(super) struct Event {
    #[diesel(sql_type = Binary)]
    event_id: Vec<u8>,
    #[diesel(sql_type = BigInt)]
    pub(super) sequence: i64,
}

#[derive(QueryableByName)]
pub(super) struct EventAndRow {
    #[diesel(embed)]
    event: Event,
    #[diesel(sql_type = Binary)]
    id: Vec<u8>,
}

impl Event {
    pub(super) fn row(&self) -> QueryResult<EventRow> {
        Ok(EventRow { event_id: uuid(&self.event_id)?, sequence: self.sequence, id: Uuid::nil() })
    }
}

impl EventAndRow {
    pub(super) fn row(&self) -> QueryResult<EventRow> {
        Ok(EventRow { id: uuid(&self.id)?, ..self.event.row()? })
    }
}

fn uuid(bytes: &[u8]) -> QueryResult<Uuid> {
    Uuid::from_slice(bytes).map_err(|error| Error::DeserializationError(error.into()))
}
