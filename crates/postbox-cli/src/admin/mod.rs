//! The admin API and the dashboard, served from the control thread on an address of their own.
//!
//! A request's way: [`guard`] (our name, our page, who, may they), a handler ([`session`], [`tables`], [`events`], [`dead`],
//! [`published`], [`jobs`], [`doctor`], [`stream`], [`pages`]), [`answer`]. What dashboards show all the time is looked at once
//! for all of them ([`sample`]) and put into words by [`overview`]. `openapi.json` describes every route; a test holds the two
//! against each other.

mod access;
mod answer;
mod dead;
mod doctor;
mod events;
mod fields;
mod guard;
mod jobs;
mod openapi;
mod overview;
mod pages;
mod published;
mod run;
mod sample;
mod session;
mod sinks;
mod stream;
mod table;
mod tables;
mod trial;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use axum::{Router, extract::State};
use postbox_core::Code;
use tokio::sync::{Notify, Semaphore};

pub(crate) use table::{DatabaseSetup, TableSetup};

use self::access::Access;
use self::answer::Refusal;
use self::guard::{Gate, Need, gate, outer};
use self::jobs::Jobs;
use self::sample::Pulse;
use self::table::Table;
use crate::config::Config;
use crate::report::{Exit, Failure, Problem};

/// What is served, ready but for the runtime that serves it.
#[derive(Debug)]
pub(crate) struct Setup {
    access: Access,
    listener: TcpListener,
    address: SocketAddr,
    databases: Vec<DatabaseSetup>,
    /// None in the demo, which has no configuration.
    config: Option<Config>,
}

impl Setup {
    /// Takes the port now, so that one that is taken is an error at the start. None where nobody wants it.
    pub(crate) fn of(config: &Config, databases: Vec<DatabaseSetup>) -> Result<Option<Self>, Failure> {
        if !config.admin.enabled {
            return Ok(None);
        }
        let access = Access::of(config)?;
        let Some(address) = config.admin.listen else { return Ok(None) };
        let setup = Self::bind(access, address, databases, Some(config.clone()));
        let setup = setup.map_err(|error| {
            let origin = config.origin("admin.listen").map(|o| format!(" (from {o})")).unwrap_or_default();
            let message = format!("admin.listen = {address} cannot be used{origin}: {error}");
            let next = "choose a free port of this machine, or stop what uses it; port 0 takes any";
            Failure::from(Problem::new(Code::ConfigInvalid, message).next(next).exit(Exit::Failed))
        })?;
        tracing::info!("dashboard on {}", setup.url());
        Ok(Some(setup))
    }

    /// For the demo: on this machine only, at this port or any other.
    pub(crate) fn local(port: u16, databases: &[DatabaseSetup]) -> Result<Option<Self>, Failure> {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        for address in [at(port), at(0)] {
            let access = Access::local(address)?;
            if let Ok(setup) = Self::bind(access, address, databases.to_vec(), None) {
                return Ok(Some(setup));
            }
        }
        // A demo without it is still one.
        Ok(None)
    }

    fn bind(
        mut access: Access,
        address: SocketAddr,
        databases: Vec<DatabaseSetup>,
        config: Option<Config>,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        access.listens_on(address);
        Ok(Self { access, listener, address, databases, config })
    }

    /// Where to point a browser.
    pub(crate) fn url(&self) -> String {
        format!("http://{}{}/", self.address, self.access.base)
    }
}

/// What is wrong with the settings, for `config check`.
pub(crate) fn check(config: &Config) -> Result<(), Failure> {
    if config.admin.enabled { Access::of(config).map(drop) } else { Ok(()) }
}

/// What handlers share.
struct Admin {
    access: Access,
    tables: Arc<[Arc<Table>]>,
    pulse: Arc<Pulse>,
    jobs: Arc<Jobs>,
    streams: Arc<Semaphore>,
    doctor: doctor::Office,
    config: Option<Config>,
}

type Shared = State<Arc<Admin>>;

impl Admin {
    /// The table with this id.
    fn table(&self, id: &str) -> Result<&Arc<Table>, Refusal> {
        self.tables.iter().find(|table| table.id == id).ok_or_else(|| {
            let id: String = id.chars().take(100).collect();
            Refusal::not_found(format!("there is no table {id:?} here")).next("GET /api/v1/tables names them")
        })
    }
}

/// A route: its method, its path below the base path, what it asks of who calls it, and who answers.
type Route = (&'static str, &'static str, Need, MethodRouter<Arc<Admin>>);

/// Every route of the API.
fn routes() -> Vec<Route> {
    use Need::{Change, Nothing, Own, View};
    vec![
        ("get", "/api/v1/session", Nothing, get(session::show)),
        ("post", "/api/v1/login", Nothing, post(session::login)),
        ("post", "/api/v1/logout", Own, post(session::logout)),
        ("get", "/api/v1/openapi.json", View, get(openapi::show)),
        ("get", "/api/v1/overview", View, get(tables::overview)),
        ("get", "/api/v1/stream", View, get(stream::stream)),
        ("get", "/api/v1/doctor", View, get(doctor::show)),
        ("get", "/api/v1/sinks", View, get(sinks::list)),
        ("get", "/api/v1/jobs", View, get(jobs::list)),
        ("get", "/api/v1/jobs/{job_id}", View, get(jobs::show)),
        ("post", "/api/v1/jobs/{job_id}/stop", Change, post(jobs::stop)),
        ("get", "/api/v1/tables", View, get(tables::list)),
        ("get", "/api/v1/tables/{table}", View, get(tables::show)),
        ("get", "/api/v1/tables/{table}/history", View, get(tables::history)),
        ("post", "/api/v1/tables/{table}/pause", Change, post(tables::pause)),
        ("post", "/api/v1/tables/{table}/resume", Change, post(tables::resume)),
        ("post", "/api/v1/tables/{table}/test", Change, post(trial::write)),
        ("get", "/api/v1/tables/{table}/blocked", View, get(tables::blocked)),
        ("get", "/api/v1/tables/{table}/inbox", View, get(tables::inbox)),
        ("get", "/api/v1/tables/{table}/audit", View, get(tables::audit)),
        ("get", "/api/v1/tables/{table}/events", View, get(events::list)),
        ("get", "/api/v1/tables/{table}/events/{event_id}", View, get(events::show)),
        ("get", "/api/v1/tables/{table}/events/{event_id}/payload", View, get(events::payload)),
        ("post", "/api/v1/tables/{table}/events/{event_id}/replay", Change, post(events::replay)),
        ("get", "/api/v1/tables/{table}/dead", View, get(dead::list)),
        ("get", "/api/v1/tables/{table}/dead/count", View, get(dead::count)),
        ("get", "/api/v1/tables/{table}/dead/causes", View, get(dead::causes)),
        ("get", "/api/v1/tables/{table}/dead/preview", View, get(dead::preview)),
        ("post", "/api/v1/tables/{table}/dead/replay", Change, post(dead::replay)),
        ("post", "/api/v1/tables/{table}/dead/discard", Change, post(dead::discard)),
        ("get", "/api/v1/tables/{table}/published/preview", View, get(published::preview)),
        ("post", "/api/v1/tables/{table}/published/replay", Change, post(published::replay)),
    ]
}

fn router(admin: &Arc<Admin>) -> Router {
    let guarded = |router: Router<Arc<Admin>>, (_, path, need, answer): Route| {
        let gate_of = Gate { admin: Arc::clone(admin), need };
        router.route(path, answer.layer(from_fn_with_state(gate_of, gate)))
    };
    let api = routes().into_iter().fold(Router::new(), guarded);
    let inner = api.route("/", get(pages::index)).route("/assets/{*file}", get(pages::asset));
    let router = match admin.access.base.as_str() {
        "" => inner,
        base => Router::new().nest(base, inner).route(&format!("{base}/"), get(pages::index)),
    };
    let router = router
        .fallback(|| async { Refusal::not_found("there is nothing here") })
        .layer(from_fn_with_state(Arc::clone(admin), outer));
    router.with_state(Arc::clone(admin))
}

/// Serves until the process ends. Within the runtime of the control thread: a relay that hangs hangs alone.
pub(crate) async fn serve(setup: Setup) {
    let Setup { access, listener, databases, config, .. } = setup;
    let tables: Arc<[Arc<Table>]> = Table::all(databases).into();
    let (pulse, done) = (Arc::new(Pulse::new()), Arc::new(Notify::new()));
    for table in tables.iter() {
        tokio::spawn(sample::watch(Arc::clone(table), Arc::clone(&pulse), Arc::clone(&done)));
    }
    let jobs = Arc::new(Jobs::new());
    tokio::spawn(sample::compose(Arc::clone(&tables), Arc::clone(&pulse), Arc::clone(&jobs), done));
    let streams = Arc::new(Semaphore::new(stream::MOST));
    let doctor = doctor::Office::default();
    let admin = Arc::new(Admin { access, tables, pulse, jobs, streams, doctor, config });
    if let Err(error) = crate::serve::serve(listener, router(&admin)).await {
        tracing::error!(%error, "the admin API ended");
    }
}
