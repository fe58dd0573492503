//! What operators see of an inbox, and what they can have it forget.

use std::fmt::{self, Write as _};
use std::future::Future;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::store::StoreError;

/// Which messages: all conditions that are given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InboxFilter {
    /// Of this consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// These; any, if there are none here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub message_ids: Vec<String>,
    /// Recorded at this time or later, by the database's clock.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub since: Option<OffsetDateTime>,
    /// Recorded before this time.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub until: Option<OffsetDateTime>,
}

/// One page of a list, the latest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRequest {
    /// Which messages.
    pub filter: InboxFilter,
    /// Go on behind this one.
    pub after: Option<InboxKey>,
    /// At most so many.
    pub limit: u32,
}

/// What a list found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InboxPage {
    /// The messages, the latest first.
    pub messages: Vec<InboxEntry>,
    /// Where the next page starts; none at the end.
    pub next: Option<InboxKey>,
}

/// A message that was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InboxEntry {
    /// For whom.
    pub consumer: String,
    /// Its id.
    pub message_id: String,
    /// When: the start of the transaction on PostgreSQL.
    #[serde(with = "time::serde::rfc3339")]
    pub processed_at: OffsetDateTime,
}

/// A place in the list. As text it can be put on a command line as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxKey {
    /// By this first,
    pub processed_at: OffsetDateTime,
    /// then by this,
    pub consumer: String,
    /// then by this.
    pub message_id: String,
}

/// A text that is no place in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no place in a list of messages")]
pub struct InboxKeyError;

/// The inbox beside one outbox table. Every change is written to the audit log with the name of who made it.
///
/// The names begin with `inbox` since what implements it also implements the others' traits.
///
/// # Errors
/// When the table is missing or the database fails; [`StoreError::kind`] tells whether the same again may work.
///
/// # Cancel safety
/// What only reads may be dropped at any time. What a dropped [`inbox_forget`](Self::inbox_forget) had committed stays forgotten.
pub trait InboxAdmin: Send + Sync {
    /// Whether there is one.
    fn has_inbox(&self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// A page of what was recorded, the latest first.
    fn inbox_list(
        &self,
        request: &InboxRequest,
    ) -> impl Future<Output = Result<InboxPage, StoreError>> + Send;

    /// How many match.
    fn inbox_count(&self, filter: &InboxFilter) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Forgets what matches, in bounded transactions: such a message has its effect again when it comes again. Answers how many.
    fn inbox_forget(
        &self,
        filter: &InboxFilter,
        who: &str,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

impl InboxEntry {
    /// Its place in the list.
    pub fn key(&self) -> InboxKey {
        let Self { consumer, message_id, processed_at } = self.clone();
        InboxKey { processed_at, consumer, message_id }
    }
}

impl InboxPage {
    /// A page of what was found, of which one more than `limit` was asked for.
    pub fn of(mut messages: Vec<InboxEntry>, limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = messages.len() > limit;
        messages.truncate(limit);
        let next = messages.last().filter(|_| more).map(InboxEntry::key);
        Self { messages, next }
    }
}

/// Microseconds, consumer and message, with commas between; bytes that mean something to a shell or here are `%` and two digits.
impl fmt::Display for InboxKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.processed_at.unix_timestamp_nanos() / 1000)?;
        for part in [&self.consumer, &self.message_id] {
            f.write_char(',')?;
            for byte in part.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b':' | b'/' | b'@' => {
                        f.write_char(char::from(byte))?;
                    }
                    _ => write!(f, "%{byte:02X}")?,
                }
            }
        }
        Ok(())
    }
}

impl FromStr for InboxKey {
    type Err = InboxKeyError;

    fn from_str(text: &str) -> Result<Self, InboxKeyError> {
        let mut parts = text.split(',');
        let mut next = || parts.next().ok_or(InboxKeyError);
        let (micros, consumer, message_id) = (next()?, next()?, next()?);
        if next().is_ok() {
            return Err(InboxKeyError);
        }
        let micros: i64 = micros.parse().map_err(|_| InboxKeyError)?;
        let processed_at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000);
        Ok(Self {
            processed_at: processed_at.map_err(|_| InboxKeyError)?,
            consumer: plain(consumer).ok_or(InboxKeyError)?,
            message_id: plain(message_id).ok_or(InboxKeyError)?,
        })
    }
}

fn plain(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let digits = str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

impl Serialize for InboxKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_knows_where_the_next_one_starts() {
        let entry = |n: usize| InboxEntry {
            consumer: "stock".into(),
            message_id: n.to_string(),
            processed_at: OffsetDateTime::UNIX_EPOCH,
        };
        let page = InboxPage::of((0..3).map(entry).collect(), 2);
        assert_eq!((page.messages.len(), page.next.unwrap().message_id.as_str()), (2, "1"));
        assert_eq!(InboxPage::of((0..2).map(entry).collect(), 2).next, None);
        assert_eq!(InboxPage::of(Vec::new(), 2), InboxPage::default());
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for wrong in ["", "1", "1,a", "1,a,b,c", "x,a,b", "1,a,%", "1,a,%4", "1,a,%zz", "1,a,%+4", "1,a,%FF"]
        {
            assert_eq!(wrong.parse::<InboxKey>(), Err(InboxKeyError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_place_is_read_as_it_is_written(micros in 0..4_000_000_000_000_000_i64, consumer: String, message_id: String) {
            let processed_at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap();
            let key = InboxKey { processed_at, consumer, message_id };
            let text = key.to_string();
            prop_assert!(!text.contains([' ', '\'', '"', '$', '|', '&', '\n']));
            prop_assert_eq!(text.parse(), Ok(key));
        }
    }
}
