//! A receiver of webhooks with moods. Each event is noted when it arrives, whatever is answered then.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use postbox_testkit::Oracle;
use tokio::runtime::Runtime;

/// What nobody can deliver: the receiver refuses it for good.
pub(crate) const POISON: &str = "org.poison.happened.v1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Willing,
    /// As one that is overloaded.
    Refuses,
    /// Takes its time.
    Slow,
    /// Takes events and never says so.
    Swallows,
}

struct Desk {
    oracle: Arc<Oracle>,
    mood: Mutex<Mood>,
}

pub(crate) struct Receiver {
    desk: Arc<Desk>,
    address: SocketAddr,
    // Its threads end with it.
    _runtime: Runtime,
}

impl Receiver {
    pub(crate) fn start(oracle: Arc<Oracle>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let desk = Arc::new(Desk { oracle, mood: Mutex::new(Mood::Willing) });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let service = Router::new().fallback(receive).with_state(Arc::clone(&desk));
        runtime.spawn(async move { axum::serve(listener, service).await });
        Self { desk, address, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn be(&self, mood: Mood) {
        *self.desk.mood.lock().unwrap() = mood;
    }
}

async fn receive(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap();
    let mood = *desk.mood.lock().unwrap();
    if header("postbox-topic") == POISON {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    // Now and then it fails, before or after the event has arrived.
    let chance = fastrand::u8(..);
    if mood == Mood::Refuses {
        return StatusCode::SERVICE_UNAVAILABLE;
    } else if chance < 5 {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    let (id, sequence) = (header("postbox-event-id"), header("postbox-sequence"));
    let aggregate = header("postbox-aggregate-id").to_owned();
    desk.oracle.delivered_in(id.parse().unwrap(), aggregate, sequence.parse().unwrap());
    match mood {
        Mood::Slow => tokio::time::sleep(Duration::from_millis(150)).await,
        Mood::Swallows => tokio::time::sleep(Duration::from_secs(10)).await,
        Mood::Willing | Mood::Refuses => {}
    }
    if chance > 253 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::NO_CONTENT }
}
