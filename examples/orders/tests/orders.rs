//! The built example at work, as a customer and an operator see it, on both databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_testkit::{Program, eventually_blocking, postgres_or_skip};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_mins(1);

/// The example, running.
struct Shop {
    program: Program,
    address: String,
}

impl Shop {
    fn open(url: &str) -> Self {
        let env = [("DATABASE_URL", url), ("PORT", "0")];
        let program = Program::spawn(env!("CARGO_BIN_EXE_orders"), &[], &env);
        let line = program.wait_for_line("open http://", LONG);
        Self { program, address: line.split("http://").nth(1).unwrap().to_owned() }
    }

    fn get(&self, path: &str) -> (u16, String) {
        ask(&self.address, &format!("GET {path} HTTP/1.1\r\n"), "").expect("an answer")
    }

    fn order(&self, body: &str) -> (u16, String) {
        order(&self.address, body).expect("an answer")
    }

    fn orders(&self) -> Vec<Value> {
        serde_json::from_str(&self.get("/orders").1).unwrap()
    }

    fn all_confirmed(&self) -> Vec<Value> {
        let confirmed = || {
            let orders = self.orders();
            orders.iter().all(|order| order["confirmation"].is_string()).then_some(orders)
        };
        eventually_blocking("every order to be confirmed", LONG, confirmed)
    }

    /// Ends it as an orchestrator does.
    fn close(mut self) {
        self.program.sigterm();
        assert_eq!(self.program.wait(LONG).code(), Some(0), "{}", self.program.stderr());
    }
}

/// One request on a connection of its own; none if nobody answers.
fn ask(address: &str, head: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LONG)).ok()?;
    let length = body.len();
    let request = format!("{head}Host: shop\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn order(address: &str, body: &str) -> Option<(u16, String)> {
    ask(address, "POST /orders HTTP/1.1\r\nContent-Type: application/json\r\n", body)
}

/// Runs the whole story; answers how many orders there are at the end.
fn story(url: &str) -> usize {
    let shop = Shop::open(url);
    let mut ids = Vec::new();
    for quantity in 1..=5 {
        let (status, body) = shop.order(&json!({ "item": "tea", "quantity": quantity }).to_string());
        assert_eq!(status, 201, "{body}");
        let id: Value = serde_json::from_str(&body).unwrap();
        ids.push(id["id"].as_str().unwrap().to_owned());
    }
    for (bad, words) in [
        (r#"{"item": "tea", "quantity": 0}"#, "quantity is not from 1 to 1000"),
        (r#"{"item": " ", "quantity": 1}"#, "item is empty"),
        (r#"{"item": "tea"}"#, "missing field"),
        ("tea, please", ""),
    ] {
        let (status, body) = shop.order(bad);
        assert!((400..500).contains(&status) && body.contains(words), "{status} {body}");
    }
    let by_form = "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(ask(&shop.address, by_form, "item=%3Cb%3E&quantity=2").unwrap().0, 303);

    let orders = shop.all_confirmed();
    assert_eq!(orders.len(), 6, "{orders:?}");
    let of = |id: &String| orders.iter().find(|order| order["id"] == **id).expect("the order");
    assert_eq!(of(&ids[2])["confirmation"], "3 × tea is on its way");
    let (status, page) = shop.get("/");
    assert!(status == 200 && page.contains("2 × &lt;b&gt; is on its way") && !page.contains("<b>"), "{page}");
    assert_eq!(shop.get("/readyz"), (200, "well\n".to_owned()));

    // Customers go on ordering while it ends: whoever was told that the order is placed can rely on it.
    let (over, address) = (AtomicBool::new(false), shop.address.clone());
    let placed = std::thread::scope(|scope| {
        let customer = || {
            let mut placed = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let Some((201, body)) = order(&address, r#"{"item": "rice", "quantity": 1}"#) else { break };
                let id: Value = serde_json::from_str(&body).unwrap();
                placed.push(id["id"].as_str().unwrap().to_owned());
            }
            placed
        };
        let customers: Vec<_> = (0..4).map(|_| scope.spawn(customer)).collect();
        eventually_blocking("some orders", LONG, || shop.orders().len() > 30);
        shop.close();
        over.store(true, Ordering::Relaxed);
        customers.into_iter().flat_map(|customer| customer.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(placed.len() > 20, "{}", placed.len());

    let shop = Shop::open(url);
    let orders = shop.all_confirmed();
    for id in placed.iter().chain(&ids) {
        assert!(orders.iter().any(|order| order["id"] == **id), "{id} is lost");
    }
    shop.close();
    orders.len()
}

/// One event for each order, and none for what was refused; all published, and by the first attempt.
const EVENTS: &str = "SELECT count(*) FROM shop_outbox";
const UNPUBLISHED: &str = "SELECT count(*) FROM shop_outbox WHERE published_at IS NULL OR attempts <> 1";
const CONFIRMED: &str = "SELECT count(*) FROM orders JOIN confirmations ON order_id = id";

#[test]
fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("orders.db").display());
    let orders = story(&url);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let counts = runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
        let mut counts = Vec::new();
        for sql in [EVENTS, UNPUBLISHED, CONFIRMED] {
            counts.push(sqlx::query_scalar::<_, i64>(sql).fetch_one(&pool).await.unwrap());
        }
        counts
    });
    let orders = i64::try_from(orders).unwrap();
    assert_eq!(counts, [orders, 0, orders]);
}

#[test]
fn on_postgresql() {
    let db = postgres_or_skip!().database();
    let orders = story(&db.url).to_string();
    assert_eq!([EVENTS, UNPUBLISHED, CONFIRMED].map(|sql| db.psql(sql)), [orders.as_str(), "0", &orders]);
}

#[test]
fn what_is_in_the_way_is_said_in_a_sentence() {
    let env = [("DATABASE_URL", "sqlite::memory:"), ("PORT", "0")];
    let mut program = Program::spawn(env!("CARGO_BIN_EXE_orders"), &[], &env);
    assert_eq!(program.wait(LONG).code(), Some(1));
    assert!(program.stderr().contains("orders: OUTBOX_DB_URL: a database in memory"), "{}", program.stderr());
}
