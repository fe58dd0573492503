//! [`Store`]: what the engine asks of a database. It cannot tell how rows are claimed, only that they are its own.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::code::Code;
use crate::dispatcher::Delivery;
use crate::event::{EventId, TenantId};
use crate::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use crate::redact::Summary;
use crate::topic::Topic;

mod error;
mod token;

pub use error::{StoreError, StoreErrorKind};
pub use token::Token;

/// One outbox table in one database, as a relay sees it.
///
/// Every change is fenced: a row that another relay took meanwhile is reported as lost and left alone. All times are
/// compared by the database's clock. Implement it for your own database; `postbox-testkit` has the suite to pass.
///
/// # Errors
/// A relay that is refused at its start ends, unless it is [patient](crate::RelayBuilder::patient). Everything else, and everything
/// later, it tries again for ever.
///
/// # Cancel safety
/// A relay drops [`open`](Self::open) and [`require`](Self::require) when it is told to stop, [`wait`](Self::wait) whenever
/// something else happens, [`close`](Self::close) when it takes too long, and what is about dead events
/// ([`letters`](Self::letters), [`settle_letters`](Self::settle_letters), [`redrive`](Self::redrive)) with a run by hand that is
/// dropped, or at the end of a stop: these must be cancel safe. All others it runs in tasks of their own; what is cut off there
/// with the runtime waits until its lease has run out.
pub trait Store: Clone + Send + Sync + 'static {
    /// The table's name, for logs and metrics.
    fn table(&self) -> &str;

    /// In what order its events are delivered. The store hands rows over in that order, and the relay keeps it.
    fn order(&self) -> Order {
        Order::None
    }

    /// Whether tenants share the relay: claims then take some of each, and none of those in
    /// [`crowding`](ClaimRequest::crowding).
    fn fair_tenants(&self) -> bool {
        false
    }

    /// Checks that the table is there and can be relayed. Called before anything else; and again after it has failed, and for each
    /// run by hand.
    fn open(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Refuses what the table cannot do, with the next step. Called after [`open`](Self::open), before anything is claimed.
    ///
    /// A store that does not say otherwise can do nothing of it.
    fn require(&self, wanted: Requirements) -> impl Future<Output = Result<(), StoreError>> + Send {
        let refused = wanted.first().map_or(Ok(()), |what| {
            let message = format!("the store of {} cannot do {what}: leave it out", self.table());
            Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, message))
        });
        std::future::ready(refused)
    }

    /// Takes rows to work on, renews what makes this relay the active one, and reads whether the table is paused.
    ///
    /// Called at least once per `poll_interval` while the relay's loop turns, with `limit` 0 when there is no room:
    /// a store may take these calls as the proof of life of its relay.
    fn claim(&self, request: ClaimRequest) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Writes what became of claimed rows, in one fenced statement. The relay keeps the settlements: it comes with them again
    /// if this fails.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<Settled, StoreError>> + Send;

    /// Makes leases last `lock_ttl` from now; answers those for which it did not.
    fn extend(&self, leases: Vec<Lease>) -> impl Future<Output = Result<Renewed, StoreError>> + Send;

    /// These rows are given up without a settle: their lease could not be renewed. A store that remembers what is in flight
    /// forgets them.
    fn forget(&self, leases: &[Lease]) {
        let _ = leases;
    }

    /// Leases dead events that have not gone to the dead-letter route. Answers none to a relay that may not work.
    fn letters(
        &self,
        request: LetterRequest,
    ) -> impl Future<Output = Result<Vec<Letter>, StoreError>> + Send {
        let _ = request;
        std::future::ready(Ok(Vec::new()))
    }

    /// Writes what became of them, fenced by their leases.
    fn settle_letters(
        &self,
        letters: Vec<(Lease, LetterVerdict)>,
    ) -> impl Future<Output = Result<Settled, StoreError>> + Send {
        let lost = letters.into_iter().map(|(lease, _)| lease.row).collect();
        std::future::ready(Ok(Settled { lost, busy: Vec::new() }))
    }

    /// Replays events that have been dead for long enough and not been replayed so too often, in bounded steps, each with
    /// a line in the audit log; answers how many. None for a relay that may not work.
    fn redrive(&self, request: Redrive) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = request;
        std::future::ready(Ok(0))
    }

    /// Waits until rows may have become available, at most so long.
    fn wait(&self, at_most: Duration) -> impl Future<Output = ()> + Send;

    /// Gives up being the active relay, so that another takes over at once.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// What a relay wants to claim.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Which rows.
    pub mode: ClaimMode,
    /// At most so many rows; 0 claims none and only shows that the relay lives.
    pub limit: usize,
    /// At most so many bytes of payload, except that one row is always allowed.
    pub max_bytes: usize,
    /// How long the lease lasts.
    pub lock_ttl: Duration,
    /// Rows that have used up so many attempts are buried instead.
    pub max_attempts: i32,
    /// How often the relay asks at least, as long as it lives.
    pub poll_interval: Duration,
    /// Topics to leave out: their sink is down or busy.
    pub exclude: Arc<[Topic]>,
    /// Rows to leave out besides, whatever the mode: whoever remains for them is down or busy. A store that does not look
    /// at this is right but wasteful.
    pub spent: Arc<[Spent]>,
    /// What to leave out of tenants that have their share of the relay already. Always empty unless tenants share it.
    pub crowding: Arc<[Crowding]>,
}

/// What a claim leaves out of one tenant's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crowding {
    /// All of them.
    Whole(TenantId),
    /// Those for sinks that it has its share of.
    Some {
        /// Whose.
        tenant: TenantId,
        /// Those of these topics.
        exclude: Vec<Topic>,
        /// And these.
        spent: Vec<Spent>,
    },
}

/// Rows of a topic that go to several sinks and that all of these sinks have confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    /// The topic.
    pub topic: Topic,
    /// The sinks; never none.
    pub sinks: Vec<Arc<str>>,
}

/// Which rows to claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimMode {
    /// Those that wait; rows whose lease ran out are left, and said to be there.
    Waiting,
    /// One whose lease ran out: its last relay may have died of it.
    Suspect,
    /// Those of these topics alone, to find out whether their sink is back.
    Probe(Arc<[Topic]>),
}

/// What a claim brought.
#[derive(Debug, Default)]
pub struct Claim {
    /// Whether this relay may work at all.
    pub standing: Standing,
    /// Whether an operator paused the table. Also told to a relay that stands by: it handles what its own process writes.
    pub paused: bool,
    /// Rows that are now leased to this relay, in order of availability and sequence.
    pub rows: Vec<Claimed>,
    /// Leased rows that cannot be read as events.
    pub undecodable: Vec<Undecodable>,
    /// Leased rows that turned out to be more than `max_bytes` allows: they go back uncharged.
    pub returned: Vec<Lease>,
    /// Rows that had used up their attempts and are dead now.
    pub buried: Vec<Buried>,
    /// Whether there may be more: claim again at once.
    pub more: bool,
    /// Whether there are rows whose lease ran out.
    pub suspects: bool,
}

impl Claim {
    /// Whether it brought nothing at all.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
            && self.undecodable.is_empty()
            && self.returned.is_empty()
            && self.buried.is_empty()
    }
}

/// Whether a relay may work on its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// It may.
    #[default]
    Active,
    /// Another relay does.
    Standby,
    /// An operator paused the table.
    Paused,
}

/// In what order the events of a table are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As they come.
    #[default]
    None,
    /// Those of one aggregate one after another, by `sequence`.
    Aggregate(OnDead),
}

/// What a dead event means for the later ones of its aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDead {
    /// They wait until it is replayed or discarded.
    #[default]
    Block,
    /// They go on without it.
    Skip,
}

/// Whose events a relay is for: everybody's, as they come, if nothing else is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tenants {
    /// Only these tenants'; everybody's, if it is empty. Such a relay leaves the others to other relays.
    pub only: Vec<TenantId>,
    /// Claims take some of each tenant's, and no tenant may have all of the relay.
    pub fair: bool,
}

impl Tenants {
    /// Whether rows are claimed tenant by tenant.
    pub fn apart(&self) -> bool {
        self.fair || !self.only.is_empty()
    }
}

/// A row that is leased to this relay.
#[derive(Debug)]
pub struct Claimed {
    /// The fence for its settlement.
    pub lease: Lease,
    /// What to dispatch. Boxed: it goes through several hands.
    pub delivery: Box<Delivery>,
    /// How long it had been due when it was claimed, by the database's clock.
    pub age: Duration,
    /// Its strand, where order is asked for: events with the same number are dispatched one after another, by sequence. A
    /// store hands over the rows of a strand without gaps, starting with its first that is neither published nor dead. One
    /// that could not be leased, cannot be read or is returned ends the strand: what was leased behind it is returned, too.
    pub strand: Option<i64>,
    /// The sinks that have confirmed it at an earlier attempt.
    pub sinks_done: Vec<String>,
}

/// The proof that a row was claimed by this relay, at this attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The row.
    pub row: Uuid,
    /// The attempt, counted with this one.
    pub attempts: i32,
    /// The claim's own token.
    pub token: Token,
    /// When it was claimed, by the database's clock: the fence where there is no column for the token.
    pub since: OffsetDateTime,
}

/// A leased row that is not an event.
#[derive(Debug, Clone)]
pub struct Undecodable {
    /// The fence for its settlement.
    pub lease: Lease,
    /// What can be said of it.
    pub topic: String,
    /// Its event id.
    pub event_id: EventId,
    /// Why it cannot be decoded, without its content.
    pub reason: String,
}

/// A row that became dead at the claim.
#[derive(Debug, Clone)]
pub struct Buried {
    /// Its topic, as far as it is one.
    pub topic: String,
    /// Its event id.
    pub event_id: EventId,
    /// Its sequence.
    pub sequence: i64,
}

/// What to write for one claimed row.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The fence.
    pub lease: Lease,
    /// What became of it.
    pub verdict: Verdict,
    /// The failure to append to the row's log, if it failed. Boxed: most do not fail, and all go through several hands.
    pub failure: Option<Box<Failure>>,
    /// Sinks that have confirmed it while others have not: to be added to those that the row names. Always empty for
    /// [`Verdict::Delivered`], which says it of all.
    pub sinks_done: Box<[Arc<str>]>,
}

impl Settlement {
    /// A verdict without a failure, and without sinks that have confirmed alone.
    pub fn new(lease: Lease, verdict: Verdict) -> Self {
        Self { lease, verdict, failure: None, sinks_done: Box::default() }
    }
}

/// What becomes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Published.
    Delivered,
    /// Waits for its next attempt.
    Retry {
        /// How long.
        after: Duration,
        /// Why.
        reason: Summary,
    },
    /// Goes back as if it had not been claimed, its attempt given back.
    Release {
        /// Not to be claimed again for so long.
        after: Option<Duration>,
        /// Why, where its destination is down: people shall see it in the row, and that it is not scheduled but held up.
        reason: Option<Summary>,
    },
    /// Will not be tried again until someone replays it.
    Dead {
        /// Why.
        reason: Summary,
    },
}

/// One line of a row's `attempts_log`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Failure {
    /// The relay that tried.
    pub relay: Arc<str>,
    /// How long the dispatch took.
    pub duration_ms: u64,
    /// `retry`, `reject`, `timeout`, `panic`, …
    pub outcome: &'static str,
    /// The error's summary.
    pub error: String,
}

/// What a settle did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Rows that were no longer this relay's.
    pub lost: Vec<Uuid>,
    /// Rows that somebody else has locked at the moment: to be settled again.
    pub busy: Vec<Uuid>,
}

/// What a renewal did not renew.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Leases that were no longer this relay's.
    pub lost: Vec<Lease>,
    /// Those whose rows somebody else has locked at the moment: they end when they would have ended.
    pub busy: Vec<Lease>,
}
