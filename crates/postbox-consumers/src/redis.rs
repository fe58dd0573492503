//! Redis Streams: a consumer of a group as a [`Source`].

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, RedisResult, Value, cmd};
use tokio::time::{Instant, sleep};

use crate::message::Envelope;
use crate::source::{DeadLetter, Incoming, Source, SourceError};

/// How long Redis keeps a question for new entries open.
const BLOCK: Duration = Duration::from_secs(1);
/// How long an answer may take, beside that.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);

/// The entries of a stream of Redis, for one consumer of a group.
///
/// ```no_run
/// # use postbox_consumers::{Consumer, RedisSource};
/// # async fn example(consumer: Consumer<postbox_stores::sqlite::SqlxSqlite>) -> Result<(), Box<dyn std::error::Error>> {
/// // Once: XGROUP CREATE orders stock 0 MKSTREAM
/// let client = redis::Client::open("redis://localhost:6379")?;
/// let source = RedisSource::new(client, "orders", "stock", "stock-1").dead_letters("stock:dead");
/// let running = consumer.spawn(source);
/// # running.shutdown().await?;
/// # Ok(())
/// # }
/// ```
///
/// Each process has a consumer's name of its own. It first takes what was delivered to that name and never acknowledged; what others have left behind
/// it takes over after [`take_over_after`](Self::take_over_after). It makes two connections, one to wait on, and makes them anew when they are lost.
pub struct RedisSource {
    client: Client,
    place: Arc<Place>,
    take_over_after: Duration,
    dead: Option<Arc<str>>,
    at_once: usize,
    link: Option<Link>,
    /// Read, and not handed out.
    read: VecDeque<StreamId>,
    /// The question under way: dropped, it would have entries delivered to nobody.
    reading: Option<Reading>,
    /// Behind this entry are those that were delivered to this consumer in an earlier life.
    earlier: Option<String>,
    next_look: Instant,
    cursor: String,
}

type Reading = Pin<Box<dyn Future<Output = RedisResult<Found>> + Send>>;

#[derive(Debug)]
struct Place {
    stream: String,
    group: String,
    consumer: String,
}

#[derive(Clone)]
struct Link {
    waiting: MultiplexedConnection,
    other: MultiplexedConnection,
}

/// What a question has brought.
struct Found {
    entries: Vec<StreamId>,
    which: Which,
}

enum Which {
    Earlier,
    /// With the place to look on from.
    TakenOver(String),
    New,
}

impl RedisSource {
    /// The entries of a stream for a group, which must be there, and a consumer of it.
    pub fn new(
        client: Client,
        stream: impl Into<String>,
        group: impl Into<String>,
        consumer: impl Into<String>,
    ) -> Self {
        let place = Place { stream: stream.into(), group: group.into(), consumer: consumer.into() };
        Self {
            client,
            place: Arc::new(place),
            take_over_after: Duration::from_mins(1),
            dead: None,
            at_once: 1,
            link: None,
            read: VecDeque::new(),
            reading: None,
            earlier: Some("0".to_owned()),
            next_look: Instant::now(),
            cursor: "0-0".to_owned(),
        }
    }

    /// Dead letters are entries of this stream, with all the fields that they had.
    #[must_use]
    pub fn dead_letters(mut self, stream: impl Into<Arc<str>>) -> Self {
        self.dead = Some(stream.into());
        self
    }

    /// Entries that another consumer of the group has had for so long without a sign of life are taken over; a minute. While an entry is
    /// worked on, a sign is given at every third of it.
    #[must_use]
    pub fn take_over_after(mut self, time: Duration) -> Self {
        self.take_over_after = time;
        self
    }

    async fn link(&mut self) -> RedisResult<Link> {
        if let Some(link) = &self.link {
            return Ok(link.clone());
        }
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(BLOCK + PATIENCE));
        let usual = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let waiting = self.client.get_multiplexed_async_connection_with_config(&patient).await?;
        let other = self.client.get_multiplexed_async_connection_with_config(&usual).await?;
        Ok(self.link.insert(Link { waiting, other }).clone())
    }

    /// The next question: what is left of an earlier life, then what others have left behind, then what is new.
    fn ask(&mut self, link: Link) -> Reading {
        let (place, count) = (Arc::clone(&self.place), self.at_once);
        if let Some(from) = self.earlier.clone() {
            return Box::pin(async move {
                let entries = read(link.other, &place, count, &from, None).await?;
                Ok(Found { entries, which: Which::Earlier })
            });
        }
        if self.next_look <= Instant::now() {
            let (cursor, idle) = (self.cursor.clone(), millis(self.take_over_after));
            return Box::pin(async move {
                let mut claim = cmd("XAUTOCLAIM");
                claim.arg(&place.stream).arg(&place.group).arg(&place.consumer).arg(idle).arg(cursor);
                let mut other = link.other;
                let reply: StreamAutoClaimReply =
                    claim.arg("COUNT").arg(count).query_async(&mut other).await?;
                Ok(Found { entries: reply.claimed, which: Which::TakenOver(reply.next_stream_id) })
            });
        }
        Box::pin(async move {
            let entries = read(link.waiting, &place, count, ">", Some(BLOCK)).await?;
            Ok(Found { entries, which: Which::New })
        })
    }

    fn take(&mut self, found: Found) {
        match found.which {
            Which::Earlier => self.earlier = found.entries.last().map(|entry| entry.id.clone()),
            Which::TakenOver(cursor) => {
                if cursor == "0-0" {
                    self.next_look = Instant::now() + self.take_over_after / 2;
                }
                self.cursor = cursor;
            }
            Which::New => {}
        }
        // What was deleted meanwhile is there without its fields.
        self.read.extend(found.entries.into_iter().filter(|entry| !entry.map.is_empty()));
    }
}

async fn read(
    mut redis: MultiplexedConnection,
    place: &Place,
    count: usize,
    from: &str,
    block: Option<Duration>,
) -> RedisResult<Vec<StreamId>> {
    let mut read = cmd("XREADGROUP");
    read.arg("GROUP").arg(&place.group).arg(&place.consumer).arg("COUNT").arg(count);
    if let Some(block) = block {
        read.arg("BLOCK").arg(millis(block));
    }
    let reply: Option<StreamReadReply> =
        read.arg("STREAMS").arg(&place.stream).arg(from).query_async(&mut redis).await?;
    Ok(reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids).collect())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Source for RedisSource {
    type Incoming = RedisIncoming;

    async fn open(&mut self, at_once: usize) -> Result<(), SourceError> {
        self.at_once = at_once;
        self.link().await.map_err(|error| SourceError::new("cannot connect to Redis", error)).map(drop)
    }

    async fn next(&mut self) -> Result<Option<RedisIncoming>, SourceError> {
        loop {
            if let (Some(entry), Some(link)) = (self.read.pop_front(), &self.link) {
                return Ok(Some(RedisIncoming {
                    entry,
                    place: Arc::clone(&self.place),
                    redis: link.other.clone(),
                    take_over_after: self.take_over_after,
                    dead: self.dead.clone(),
                }));
            }
            let found = match &mut self.reading {
                Some(reading) => reading.as_mut().await,
                None => match self.link().await {
                    Ok(link) => {
                        self.reading = Some(self.ask(link));
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            self.reading = None;
            match found {
                Ok(found) => self.take(found),
                Err(error) if error.code() == Some("NOGROUP") => {
                    let Place { stream, group, .. } = &*self.place;
                    let make = format!("XGROUP CREATE {stream} {group} 0 MKSTREAM");
                    let text =
                        format!("Redis has no group {group:?} of the stream {stream:?}: make it with {make}");
                    return Err(SourceError::new(text, error));
                }
                Err(error) => {
                    tracing::warn!(%error, stream = self.place.stream, "no entries of Redis for now");
                    self.link = None;
                    // What was read is pending there, and will be found among the earlier ones.
                    self.read.clear();
                    self.earlier = Some("0".to_owned());
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn halt(&mut self) {
        // What it brings would have been delivered to nobody.
        if let Some(reading) = self.reading.take()
            && let Ok(found) = reading.await
        {
            self.take(found);
        }
        let Some(link) = self.link.clone() else { return };
        for entry in std::mem::take(&mut self.read) {
            if let Err(error) = give_back(link.other.clone(), &self.place, &entry.id).await {
                tracing::warn!(%error, "an entry could not be given back");
            }
        }
    }
}

/// Redis knows no way back: but an entry that nobody has touched for long is taken over by the next who looks.
async fn give_back(mut redis: MultiplexedConnection, place: &Place, id: &str) -> RedisResult<()> {
    let mut claim = cmd("XCLAIM");
    claim.arg(&place.stream).arg(&place.group).arg(&place.consumer).arg(0).arg(id);
    claim.arg("IDLE").arg(millis(Duration::from_hours(24))).arg("JUSTID");
    claim.query_async(&mut redis).await
}

impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSource")
            .field("place", &self.place)
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

/// An entry of a stream of Redis.
pub struct RedisIncoming {
    entry: StreamId,
    place: Arc<Place>,
    redis: MultiplexedConnection,
    take_over_after: Duration,
    dead: Option<Arc<str>>,
}

impl fmt::Debug for RedisIncoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisIncoming({}/{})", self.place.stream, self.entry.id)
    }
}

impl Incoming for RedisIncoming {
    fn envelope(&mut self) -> Envelope {
        let mut envelope = Envelope {
            source: self.place.stream.clone(),
            position: Some(format!("{}/{}", self.place.stream, self.entry.id)),
            ..Envelope::default()
        };
        for (name, value) in &self.entry.map {
            let bytes = bytes(value);
            match name.as_str() {
                "payload" => envelope.payload = bytes.to_vec(),
                "key" => envelope.key = String::from_utf8(bytes.to_vec()).ok(),
                _ => {
                    let text = String::from_utf8(bytes.to_vec()).ok();
                    envelope.headers.extend(text.map(|text| (name.clone(), text)));
                }
            }
        }
        envelope
    }

    async fn acknowledge(&mut self) -> Result<(), SourceError> {
        let Place { stream, group, .. } = &*self.place;
        let mut ack = cmd("XACK");
        let told: RedisResult<()> =
            ack.arg(stream).arg(group).arg(&self.entry.id).query_async(&mut self.redis).await;
        told.map_err(|error| SourceError::new("Redis was not told of an acknowledgement", error))
    }

    async fn give_back(&mut self) -> Result<(), SourceError> {
        let told = give_back(self.redis.clone(), &self.place, &self.entry.id).await;
        told.map_err(|error| SourceError::new("Redis was not told to deliver again", error))
    }

    fn renew_every(&self) -> Option<Duration> {
        Some(self.take_over_after / 3)
    }

    async fn renew(&self) -> Result<(), SourceError> {
        let Place { stream, group, consumer } = &*self.place;
        let mut claim = cmd("XCLAIM");
        claim.arg(stream).arg(group).arg(consumer).arg(0).arg(&self.entry.id).arg("JUSTID");
        let told: RedisResult<()> = claim.query_async(&mut self.redis.clone()).await;
        told.map_err(|error| SourceError::new("Redis was not told to wait", error))
    }

    fn has_dead_letters(&self) -> bool {
        self.dead.is_some()
    }

    async fn bury(&self, letter: &DeadLetter<'_>) -> Result<(), SourceError> {
        let Some(stream) = &self.dead else {
            return Err(SourceError::of("no stream for dead letters"));
        };
        let mut add = cmd("XADD");
        add.arg(&**stream).arg("*");
        for (name, value) in self.entry.map.iter().filter(|(name, _)| !letter.replaces(name)) {
            add.arg(name).arg(bytes(value));
        }
        for (name, value) in &letter.headers {
            add.arg(*name).arg(value);
        }
        let added: RedisResult<()> = add.query_async(&mut self.redis.clone()).await;
        added.map_err(|error| {
            let what = format!("the dead letters at {stream}");
            // This connection is not made anew. Also one that does not answer: it may be gone without a word.
            if error.is_io_error() { SourceError::lost(what, error) } else { SourceError::new(what, error) }
        })
    }
}

fn bytes(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.as_bytes(),
        _ => &[],
    }
}
