//! Which dead events a command is about: those of a cause, of a filter, or named by their ids.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use postbox_core::{
    Browse, Code, DeadCause, DeadFilter, DeadLetters, EventId, EventStatus, StoreError, TableName,
};
use time::OffsetDateTime;

use super::given;
use super::replay;
use crate::assemble::operator;
use crate::cli::Call;
use crate::render::counted;
use crate::report::{Exit, Failure, Problem};

/// More causes than these are not told apart.
pub(crate) const MOST_CAUSES: usize = 1000;

/// Numbers go from the most frequent to the least, and so change as events die and come back; the id of a cause stays.
pub(crate) fn cause_id(cause: &DeadCause) -> String {
    let text = format!("{}\0{}", cause.topic, cause.cause);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("c{:06x}", hash >> 40)
}

/// The filter narrowed to a cause, by its number in `dead list` with the same filter or by its id.
pub(crate) async fn with_cause(
    store: &impl DeadLetters,
    table: &TableName,
    filter: DeadFilter,
    wanted: &str,
) -> Result<DeadFilter, Failure> {
    let causes = store.causes(&filter).await.map_err(|error| Problem::about(table, &error))?;
    let number =
        wanted.trim_start_matches('#').parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let by_number = number.and_then(|number| causes.get(number));
    let by_id: Vec<&DeadCause> = causes.iter().filter(|cause| cause_id(cause) == wanted).collect();
    let Some(found) = by_number.or(if let [only] = by_id[..] { Some(only) } else { None }) else {
        let next = format!("postbox dead list --table {table} has their numbers");
        // Ids are short, for people: two causes may share one.
        let what = if by_id.is_empty() { "unknown" } else { "the id of more than one" };
        let among = counted(causes.len() as u64, "cause");
        let message = format!("--cause = {} is {what}: there are {among}", crate::config::shown(wanted));
        return Err(Problem::new(Code::ConfigInvalid, message).next(next).into());
    };
    Ok(DeadFilter { cause: Some(found.cause.clone()), topic: Some(found.topic.clone()), ..filter })
}

/// Which dead events a change is about. Never all of them by silence.
pub(crate) enum Chosen {
    Events(Vec<EventId>),
    Matching(DeadFilter),
}

pub(crate) async fn chosen(
    call: &Call<'_>,
    store: &impl DeadLetters,
    table: &TableName,
) -> Result<Chosen, Failure> {
    let ids = given::event_ids(call)?;
    let filter = given::dead_filter(call)?;
    let cause = call.text("cause");
    let filtered = filter != DeadFilter::default() || cause.is_some();
    let ways = usize::from(!ids.is_empty()) + usize::from(filtered) + usize::from(call.on("all"));
    if ways != 1 {
        let (code, message) = match ways {
            0 => (Code::ConfigMissing, "it is not said which dead events"),
            _ => (Code::ConfigInvalid, "event ids, a filter and --all exclude each other"),
        };
        let next = "give event ids, --cause N, a filter such as --topic, or --all";
        return Err(Problem::new(code, message).next(next).into());
    }
    if !ids.is_empty() {
        return Ok(Chosen::Events(ids));
    }
    Ok(Chosen::Matching(match cause {
        Some(cause) => with_cause(store, table, filter, cause).await?,
        None => filter,
    }))
}

/// When somebody began to ask, by the database's clock, which says when events died. This machine's may be put right while a question
/// stands, and stands still while the machine sleeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began(OffsetDateTime);

impl Began {
    pub(crate) async fn now(store: &impl Browse) -> Result<Self, StoreError> {
        store.now().await.map(Self)
    }

    /// Not later than now: nobody has seen what is still to come.
    pub(crate) fn at(then: OffsetDateTime, now: OffsetDateTime) -> Self {
        Self(then.min(now))
    }

    /// The filter as it was then, by the ages of now.
    fn by(self, now: OffsetDateTime, filter: &DeadFilter) -> DeadFilter {
        let passed = now - self.0;
        let grown = |age: Duration| match Duration::try_from(passed) {
            Ok(passed) => age.saturating_add(passed),
            // The database's clock was set back: what died before is younger now than it was then.
            Err(_) => age.saturating_sub(passed.unsigned_abs()),
        };
        DeadFilter {
            older_than: Some(grown(filter.older_than.unwrap_or_default())),
            newer_than: filter.newer_than.map(grown),
            ..filter.clone()
        }
    }
}

/// The filter as it was `then`, by the ages of now. Who takes long to answer, or replays slowly, shall neither hit what
/// has died since nor miss what has grown older.
pub(crate) async fn as_of(
    store: &impl Browse,
    then: Began,
    filter: &DeadFilter,
) -> Result<DeadFilter, StoreError> {
    Ok(then.by(store.now().await?, filter))
}

impl Chosen {
    /// How many there were when somebody `began` to ask.
    pub(crate) async fn count(
        &self,
        store: &(impl DeadLetters + Browse),
        began: Began,
    ) -> Result<u64, StoreError> {
        match self {
            Self::Matching(filter) => store.count(&as_of(store, began, filter).await?).await,
            Self::Events(ids) => {
                let found = store.statuses(ids).await?;
                Ok(found.iter().filter(|(_, status)| *status == EventStatus::Dead).count() as u64)
            }
        }
    }

    /// The condition in words.
    pub(crate) fn describe(&self) -> String {
        let filter = match self {
            Self::Events(ids) if ids.len() == 1 => return format!("event {}", ids[0]),
            Self::Events(ids) => return format!("{} by id", counted(ids.len() as u64, "event")),
            Self::Matching(filter) => filter,
        };
        let age = |name: &str, age: Option<Duration>| {
            age.map(|age| format!("dead for {name} {}", crate::render::age(age)))
        };
        let parts: Vec<String> = [
            filter.topic.as_ref().map(|topic| format!("topic = {topic}")),
            filter.aggregate_type.as_ref().map(|kind| format!("aggregate type = {kind}")),
            filter.aggregate_id.as_ref().map(|id| format!("aggregate = {id}")),
            filter.tenant_id.map(|tenant| format!("tenant = {tenant}")),
            age("at least", filter.older_than),
            age("at most", filter.newer_than),
            filter.error.as_ref().map(|error| format!("error contains {error:?}")),
            filter.cause.as_ref().map(|cause| format!("cause = {cause:?}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        if parts.is_empty() { "whatever it died of".to_owned() } else { parts.join(" and ") }
    }

    /// That nothing matches is an error only where events were named.
    pub(crate) fn nothing(&self, call: &Call<'_>, table: &TableName, act: Act) -> Result<Exit, Failure> {
        if let Self::Events(ids) = self {
            let which = if ids.len() == 1 { "it is" } else { "they are" };
            let message = format!("{table} has no such dead event: {which} not there, or not dead");
            return Err(Problem::new(Code::EventMissing, message)
                .next(format!("postbox events show --table {table} {}", ids[0]))
                .into());
        }
        replay::nothing(call, table, act, "no dead event matches")
    }
}

/// How many are looked up at once: to find them may mean to read past very many others.
const AHEAD: u32 = 5_000;

/// Replays or discards the next of the chosen, at most so many, and answers which; none is the end.
pub(crate) fn next_of<'a>(
    store: &'a (impl DeadLetters + Browse),
    chosen: &'a Chosen,
    began: Began,
    rows: u64,
    act: Act,
) -> impl AsyncFnMut(u32) -> Result<Vec<EventId>, StoreError> + 'a {
    let mut picker = Picker::new(store, chosen, began, rows, &operator(), act);
    async move |take: u32| picker.next(take).await
}

/// What is done to the chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Replay,
    Discard,
}

impl Act {
    pub(crate) fn past(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Discard => "discarded",
        }
    }
}

/// Takes one batch of the chosen after the other.
pub(crate) struct Picker<'a, S> {
    store: &'a S,
    chosen: &'a Chosen,
    began: Began,
    who: String,
    act: Act,
    ahead: u32,
    waiting: VecDeque<EventId>,
    /// What dies again is not replayed again, and what cannot be had (a row whose id is none) is not asked for for ever.
    tried: HashSet<EventId>,
    behind: u32,
}

impl<'a, S: DeadLetters + Browse> Picker<'a, S> {
    /// Of what was chosen when it `began`, at most about so many rows.
    pub(crate) fn new(
        store: &'a S,
        chosen: &'a Chosen,
        began: Began,
        rows: u64,
        who: &str,
        act: Act,
    ) -> Self {
        let ahead = u32::try_from(rows).unwrap_or(AHEAD).min(AHEAD);
        let waiting: VecDeque<EventId> = match chosen {
            Chosen::Events(ids) => ids.iter().copied().collect(),
            Chosen::Matching(_) => VecDeque::new(),
        };
        let (who, tried) = (who.to_owned(), HashSet::new());
        Self { store, chosen, began, who, act, ahead, waiting, tried, behind: 0 }
    }

    /// Changes the next, at most so many, and answers which; none is the end.
    pub(crate) async fn next(&mut self, take: u32) -> Result<Vec<EventId>, StoreError> {
        loop {
            if let (Chosen::Matching(filter), true) = (self.chosen, self.waiting.is_empty()) {
                let most = self.ahead.saturating_add(self.behind);
                let filter = as_of(self.store, self.began, filter).await?;
                let found = self.store.query(&filter, most).await?;
                let tried = &mut self.tried;
                self.waiting.extend(found.iter().map(|event| event.event_id).filter(|id| tried.insert(*id)));
                if self.waiting.is_empty() && found.len() >= most as usize {
                    self.behind = self.behind.saturating_add(AHEAD);
                    continue;
                }
            }
            let some: Vec<EventId> = self.waiting.drain(..self.waiting.len().min(take as usize)).collect();
            if some.is_empty() {
                return Ok(some);
            }
            // None if somebody else was quicker with all of these: then the next ones.
            let done = match self.act {
                Act::Replay => self.store.replay_dead(&some, &self.who).await?,
                Act::Discard => self.store.discard_dead(&some, &self.who).await?,
            };
            if !done.is_empty() {
                return Ok(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_filter_is_about_the_time_of_its_preview() {
        let (began, hour) = (datetime!(2026-11-15 10:00 UTC), Duration::from_hours(1));
        let ages = |now, filter: DeadFilter| {
            let then = Began(began).by(now, &filter);
            (then.older_than, then.newer_than)
        };
        let lately = DeadFilter { newer_than: Some(hour), ..DeadFilter::default() };
        let long_ago = DeadFilter { older_than: Some(3 * hour), ..DeadFilter::default() };
        // What has died since is left alone, and what has grown older is not.
        assert_eq!(ages(began + hour, lately.clone()), (Some(hour), Some(2 * hour)));
        assert_eq!(ages(began + hour, long_ago.clone()), (Some(4 * hour), None));
        // The database's clock was set back.
        assert_eq!(ages(began - hour / 4, lately), (Some(Duration::ZERO), Some(hour / 4 * 3)));
        assert_eq!(ages(began - hour, long_ago), (Some(2 * hour), None));
    }

    #[test]
    fn nobody_has_looked_at_what_is_to_come() {
        let now = datetime!(2026-11-15 10:00 UTC);
        assert_eq!(Began::at(now + Duration::from_secs(1), now).0, now);
        assert_eq!(Began::at(now - Duration::from_secs(1), now).0, now - Duration::from_secs(1));
    }
}
