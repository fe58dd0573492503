//! Databases: how fast one database is served while its neighbour in the same process is stopped, beside how fast it is served
//! while the neighbour is up and idle.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postbox_testkit::MariaDbServer;
use serde_json::Value;

use crate::drain::{Bench, TOPIC, config_file, median, peak_memory};

const TABLE: &str = "public.bench_outbox";
const MEASURED: &str = "measured";
const NEIGHBOUR: &str = "neighbour";

/// How long anything may take that works.
const LIMIT: Duration = Duration::from_mins(2);

/// What one run showed.
struct Run {
    rate: f64,
    memory: u64,
    /// How often health was asked for, and how often the measured database was not well.
    looks: usize,
    red: usize,
    took: Duration,
}

/// Alternates the two, prints each run, then the medians and their ratio.
pub(crate) async fn run(events: usize, rounds: usize) {
    let bench = Bench::new(events, 500).await;
    let neighbour = MariaDbServer::start();
    let database = neighbour.database();
    let config = config_file(&format!(
        "sink = \"null:\"\n[cleaner]\nenabled = false\n[relay]\nbatch_size = {}\n\
         [[database]]\nname = \"{MEASURED}\"\ntables = [\"{TABLE}\"]\n\
         [[database]]\nname = \"{NEIGHBOUR}\"\nurl = \"{}\"\ntables = [\"bench_outbox\"]\n",
        bench.batch, database.url
    ));
    let program = |args: &[&str]| {
        let mut command = bench.postbox(&[]);
        command.args(args).args(["--config", &config]).env_remove("DATABASE_URL");
        command.env("DATABASE_URL_MEASURED", bench.url_of("postgres"));
        command
    };
    println!(
        "drain of {events} events of PostgreSQL, its neighbour MariaDB up and idle, or stopped, {rounds} rounds"
    );
    let (mut up, mut stopped) = (Vec::new(), Vec::new());
    let (mut memory, mut looks, mut red, mut longest) = (0, 0, 0, Duration::ZERO);
    for round in 1..=rounds {
        for stop in [false, true] {
            bench.fill().await;
            let run = one(&bench, &program, &neighbour, stop).await;
            (memory, looks, red) = (memory.max(run.memory), looks + run.looks, red + run.red);
            longest = longest.max(if stop { run.took } else { Duration::ZERO });
            if stop { &mut stopped } else { &mut up }.push(run.rate);
        }
        println!("round {round}: up {:>8.0}/s   stopped {:>8.0}/s", up[round - 1], stopped[round - 1]);
    }
    let (up, stopped) = (median(&mut up), median(&mut stopped));
    println!(
        "median: up {up:.0}/s, stopped {stopped:.0}/s (for up to {} s), ratio {:.2}, peak memory {memory} KiB, measured database not well: {red} of {looks} looks",
        longest.as_secs(),
        stopped / up
    );
}

/// Drains the table with both databases in one process. The relay has reached both before anything is drained: the table is
/// paused until then.
async fn one(
    bench: &Bench,
    program: &impl Fn(&[&str]) -> Command,
    neighbour: &MariaDbServer,
    stop: bool,
) -> Run {
    done(program(&["migrate", "up", "--database", NEIGHBOUR]));
    done(program(&["pause", "--database", MEASURED, "--table", TABLE]));
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let address = format!("127.0.0.1:{port}");
    let relay = program(&["relay", "--listen", &address]).stderr(Stdio::null()).spawn().expect("the program");
    let mut relay = Ended(relay);
    until(&mut relay, || problems(&address).is_some_and(|problems| problems.is_empty())).await;
    if stop {
        neighbour.stop();
        let told = || problems(&address).is_some_and(|problems| problems == [NEIGHBOUR]);
        until(&mut relay, told).await;
    }
    done(program(&["resume", "--database", MEASURED, "--table", TABLE]));
    let waits = "SELECT EXISTS (SELECT FROM bench_outbox WHERE published_at IS NULL)";
    let (mut looks, mut red, began) = (0, 0, Instant::now());
    while sqlx::query_scalar::<_, bool>(waits).fetch_one(&bench.pool).await.expect("an answer") {
        assert!(relay.0.try_wait().expect("its state").is_none(), "the relay ended early");
        looks += 1;
        let well = problems(&address).is_some_and(|problems| !problems.iter().any(|name| name == MEASURED));
        red += usize::from(!well);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (memory, took) = (peak_memory(&relay.0), began.elapsed());
    drop(relay);
    if stop {
        neighbour.start_again();
    }
    Run { rate: bench.rate(TOPIC).await, memory, looks, red, took }
}

/// A relay that ends with the run, however that ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn done(mut command: Command) {
    let done = command.output().expect("the program");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Waits until something is so.
async fn until(relay: &mut Ended, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            assert!(relay.0.try_wait().expect("its state").is_none(), "the relay ended early");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.expect("it takes too long");
}

/// The databases that `/readyz` complains of; none if nobody answers.
fn problems(address: &str) -> Option<Vec<String>> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
    let tables = body["tables"].as_array()?.iter().filter(|table| !table["problem"].is_null());
    Some(tables.filter_map(|table| table["database"].as_str().map(str::to_owned)).collect())
}
