//! The live stream: the overview whenever it changes, and the progress of jobs.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, Stream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};
use tokio::time::Instant;

use super::access::{Who, now};
use super::answer::Refusal;
use super::guard::cookie;
use super::sample::Snapshot;
use super::{Admin, Shared};

/// So many at a time.
pub(super) const MOST: usize = 32;

/// After this long a stream ends, and the browser asks for the next: its session may be over.
const LONGEST: Duration = Duration::from_hours(1);

/// A sign of life, so that proxies keep the connection and browsers notice when there is none.
const HEARTBEAT: Duration = Duration::from_secs(15);

struct Listening {
    admin: Arc<Admin>,
    /// The cookie, where it is one that lets them listen.
    session: Option<String>,
    overview: watch::Receiver<Arc<Snapshot>>,
    news: broadcast::Receiver<Arc<str>>,
    end: Instant,
    sent: Option<u64>,
    _place: OwnedSemaphorePermit,
}

/// Streams until somebody has had enough.
pub(super) async fn stream(
    State(admin): Shared,
    Extension(who): Extension<Option<Who>>,
    headers: HeaderMap,
) -> Response {
    let Ok(place) = Arc::clone(&admin.streams).try_acquire_owned() else {
        return Refusal::busy(format!("{MOST} live streams are open already")).into_response();
    };
    let expires = who.and_then(|who| who.expires);
    let left = expires.map(|expires| Duration::from_secs(expires.saturating_sub(now())));
    let listening = Listening {
        session: expires.and_then(|_| cookie(&headers)).map(str::to_owned),
        overview: admin.pulse.overview.subscribe(),
        news: admin.jobs.news(),
        admin,
        end: Instant::now() + left.unwrap_or(LONGEST).min(LONGEST),
        sent: None,
        _place: place,
    };
    let heartbeat = KeepAlive::new().interval(HEARTBEAT).text("heartbeat");
    Sse::new(events(listening)).keep_alive(heartbeat).into_response()
}

fn events(listening: Listening) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(listening, |mut listening| async move {
        let event = listening.next().await?;
        // Who has logged out meanwhile is told nothing more.
        listening.may_listen().then_some((Ok(event), listening))
    })
}

impl Listening {
    fn may_listen(&self) -> bool {
        self.session.as_ref().is_none_or(|cookie| self.admin.access.by_cookie(cookie).is_some())
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            // As long as somebody listens, somebody looks.
            self.admin.pulse.look();
            let snapshot = Arc::clone(&self.overview.borrow_and_update());
            if snapshot.made.is_some() && self.sent != Some(snapshot.version) {
                self.sent = Some(snapshot.version);
                let event = Event::default().event("overview").id(snapshot.version.to_string());
                return Some(event.data(&snapshot.text));
            }
            tokio::select! {
                changed = self.overview.changed() => changed.ok()?,
                news = self.news.recv() => match news {
                    Ok(job) => return Some(Event::default().event("job").data(&*job)),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                () = tokio::time::sleep_until(self.end) => return None,
            }
        }
    }
}
