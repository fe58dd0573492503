//! Rows that go to several sinks: which of them a claim leaves out since only sinks remain that are down or busy.
//!
//! A claim has one list of topics. An entry with more than a topic, its parts separated, means rows of that topic that all
//! of the sinks named behind it have confirmed.

use std::sync::Arc;

use postbox_core::Topic;
use postbox_core::store::{Crowding, Settlement, Spent};
use uuid::Uuid;

/// Neither topics nor names of sinks hold control characters.
const SEPARATOR: &str = "\u{1f}";

/// Whether a row is none of those, `$6` being the list. Rows that no sink has confirmed alone, the most of them, are not
/// looked at any further.
pub(super) const REMAINS: &str = r"(sinks_done IS NULL OR NOT EXISTS (
          SELECT 1 FROM unnest($6::text[]) AS spent (entry)
          WHERE split_part(entry, E'\x1f', 1) = topic AND strpos(entry, E'\x1f') > 0
            AND sinks_done @> (string_to_array(entry, E'\x1f'))[2:]))";

/// The list of a claim.
pub(super) fn list(topics: &[Topic], spent: &[Spent]) -> Vec<String> {
    let whole = topics.iter().map(|topic| topic.as_str().to_owned());
    let parts = spent.iter().map(|spent| {
        let names = spent.sinks.iter().map(|name| &**name);
        std::iter::once(spent.topic.as_str()).chain(names).collect::<Vec<_>>().join(SEPARATOR)
    });
    whole.chain(parts).collect()
}

/// Tenants that a claim leaves out, and entries as above of others, each behind its tenant.
pub(super) fn crowding(crowding: &[Crowding]) -> (Vec<Uuid>, Vec<String>) {
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    for one in crowding {
        match one {
            Crowding::Whole(tenant) => whole.push(tenant.0),
            Crowding::Some { tenant, exclude, spent } => {
                parts.extend(
                    list(exclude, spent).into_iter().map(|entry| format!("{tenant}{SEPARATOR}{entry}")),
                );
            }
        }
    }
    (whole, parts)
}

/// The sinks to add to each row's, as one text; null where there is none.
pub(super) fn confirmed(settlements: &[&Settlement]) -> Vec<Option<String>> {
    let joined = |names: &[Arc<str>]| names.iter().map(|name| &**name).collect::<Vec<_>>().join(SEPARATOR);
    let one = |s: &&Settlement| (!s.sinks_done.is_empty()).then(|| joined(&s.sinks_done));
    settlements.iter().map(one).collect()
}
