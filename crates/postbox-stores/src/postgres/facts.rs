//! What most events lack, as one column of an answer: it is null for them, where a dozen nulls would have to be made, sent and read.

use sqlx::postgres::{PgRow, PgValueFormat};
use sqlx::{Row as _, ValueRef as _};

use super::moment::Micros;

/// The facts of `c`; null if it has none.
pub(super) const FACTS: &str = "CASE WHEN num_nonnulls(c.content_type, c.headers, c.aggregate_type, c.aggregate_id, c.occurred_at, c.schema_id,
            c.schema_version, c.routing_key, c.metadata, c.traceparent, c.tracestate, c.sinks_done) > 0
       THEN ROW(c.content_type, c.headers::text, c.aggregate_type, c.aggregate_id, c.occurred_at, c.schema_id,
            c.schema_version, c.routing_key, c.metadata::text, c.traceparent, c.tracestate,
            to_json(c.sinks_done)::text) END";

/// Those of one row.
#[derive(Debug, Default)]
pub(super) struct Facts<'r> {
    pub(super) content_type: Option<&'r str>,
    pub(super) headers: Option<&'r str>,
    pub(super) aggregate_type: Option<&'r str>,
    pub(super) aggregate_id: Option<&'r str>,
    pub(super) occurred_at: Option<Micros>,
    pub(super) schema_id: Option<&'r str>,
    pub(super) schema_version: Option<i32>,
    pub(super) routing_key: Option<&'r str>,
    pub(super) metadata: Option<&'r str>,
    pub(super) traceparent: Option<&'r str>,
    pub(super) tracestate: Option<&'r str>,
    /// Sinks that have the event already.
    /// A JSON array.
    pub(super) sinks_done: Option<&'r [u8]>,
}

impl<'r> Facts<'r> {
    /// Reads the column at this place.
    pub(super) fn read(row: &'r PgRow, place: usize) -> Result<Self, sqlx::Error> {
        let value = row.try_get_raw(place)?;
        if value.is_null() {
            return Ok(Self::default());
        }
        if value.format() != PgValueFormat::Binary {
            return Err(broken("not in binary form"));
        }
        let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
        // How many fields there are; each is its type, its length and as many bytes.
        let mut fields = Fields(bytes.get(4..).unwrap_or_default());
        Ok(Self {
            content_type: fields.text()?,
            headers: fields.text()?,
            aggregate_type: fields.text()?,
            aggregate_id: fields.text()?,
            occurred_at: fields.number()?.map(|number| Micros(i64::from_be_bytes(number))),
            schema_id: fields.text()?,
            schema_version: fields.number()?.map(i32::from_be_bytes),
            routing_key: fields.text()?,
            metadata: fields.text()?,
            traceparent: fields.text()?,
            tracestate: fields.text()?,
            sinks_done: fields.next()?,
        })
    }
}

/// The rest of a record in the server's binary form.
struct Fields<'r>(&'r [u8]);

impl<'r> Fields<'r> {
    fn next(&mut self) -> Result<Option<&'r [u8]>, sqlx::Error> {
        let short = || broken("too short");
        let (head, rest) = self.0.split_at_checked(8).ok_or_else(short)?;
        let length = i32::from_be_bytes(head[4..].try_into().map_err(|_| short())?);
        let Ok(length) = usize::try_from(length) else {
            self.0 = rest;
            return Ok(None);
        };
        let (value, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        self.0 = rest;
        Ok(Some(value))
    }

    fn text(&mut self) -> Result<Option<&'r str>, sqlx::Error> {
        let text = self.next()?.map(str::from_utf8).transpose();
        text.map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }

    fn number<const BYTES: usize>(&mut self) -> Result<Option<[u8; BYTES]>, sqlx::Error> {
        let number = self.next()?.map(<[u8; BYTES]>::try_from).transpose();
        number.map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }
}

fn broken(how: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("the facts of an event are {how}").into())
}
