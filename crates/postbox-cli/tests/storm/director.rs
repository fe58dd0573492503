//! Who makes things go wrong, one after another, by a seed.

use std::fmt;
use std::time::{Duration, Instant};

use fastrand::Rng;
use postbox_testkit::{Program, Proxy};

use crate::receiver::Mood;
use crate::scene::{PATIENCE, Scene};
use crate::size::Memory;

const RELAYS: usize = 3;
/// What a relay has in flight at most: four batches of 50.
const IN_FLIGHT: usize = 4 * 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    Restarted,
    Frozen,
    DatabaseSilent,
    RepliesLost,
    Disconnected,
    NetworkSlow,
    SessionsEnded,
    DatabaseCrashed,
    SnapshotHeld,
    SinkRefuses,
    SinkSlow,
    SinkSwallows,
}

const FAULTS: [Fault; 13] = [
    Fault::Killed,
    Fault::Restarted,
    Fault::Frozen,
    Fault::DatabaseSilent,
    Fault::RepliesLost,
    Fault::Disconnected,
    Fault::NetworkSlow,
    Fault::SessionsEnded,
    Fault::DatabaseCrashed,
    Fault::SnapshotHeld,
    Fault::SinkRefuses,
    Fault::SinkSlow,
    Fault::SinkSwallows,
];

/// A relay, and its own way to the database.
struct Station {
    proxy: Proxy,
    program: Program,
}

pub(crate) struct Director<'a> {
    scene: &'a Scene,
    rng: Rng,
    stations: Vec<Station>,
}

/// What happened.
pub(crate) struct Notes {
    faults: Vec<(Fault, usize)>,
    pub(crate) memory: Memory,
}

impl Notes {
    /// Each fault may have everything sent again that some relay had in flight; and each event that arrives may not be confirmed.
    pub(crate) fn most_duplicates(&self) -> usize {
        let faults: usize = self.faults.iter().map(|(_, times)| times).sum();
        (faults + 1) * RELAYS * IN_FLIGHT
    }
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (fault, times) in &self.faults {
            write!(f, "{between}{fault:?} ×{times}")?;
            between = ", ";
        }
        Ok(())
    }
}

impl<'a> Director<'a> {
    pub(crate) fn new(scene: &'a Scene, rng: Rng) -> Self {
        let station = |_| {
            let proxy = Proxy::start(scene.db.addr());
            let program = scene.relay(&proxy);
            Station { proxy, program }
        };
        let stations: Vec<Station> = (0..RELAYS).map(station).collect();
        for station in &stations {
            station.program.wait_for_line("relaying", PATIENCE);
        }
        Self { scene, rng, stations }
    }

    /// One fault after another for so long. The first relay lives through all of it: its memory is watched.
    pub(crate) fn play(&mut self, lasts: Duration) -> Notes {
        let began = Instant::now();
        let mut notes = Notes {
            faults: FAULTS.map(|fault| (fault, 0)).to_vec(),
            memory: Memory::of(&self.stations[0].program),
        };
        while began.elapsed() < lasts {
            let which = self.rng.usize(..FAULTS.len());
            // A server that recovers from a crash each other second would do little else.
            if FAULTS[which] == Fault::DatabaseCrashed && self.rng.u8(..3) > 0 {
                continue;
            }
            notes.faults[which].1 += 1;
            self.strike(FAULTS[which]);
            notes.memory.look(began.elapsed());
            self.scene.look_at_backlog();
            let calm = self.rng.u64(300..1_500);
            std::thread::sleep(Duration::from_millis(calm));
        }
        notes
    }

    fn strike(&mut self, fault: Fault) {
        let a_while = Duration::from_millis(self.rng.u64(200..3_000));
        let anyone = self.rng.usize(..RELAYS);
        let mortal = self.rng.usize(1..RELAYS);
        let wait = || std::thread::sleep(a_while);
        match fault {
            Fault::Killed => {
                self.stations[mortal].program.kill9();
                self.begin_anew(mortal);
            }
            Fault::Restarted => {
                // Only one that listens for signals can be asked to end.
                self.stations[mortal].program.wait_for_line("relaying", PATIENCE);
                self.stations[mortal].program.stop(PATIENCE);
                self.begin_anew(mortal);
            }
            Fault::Frozen => {
                self.stations[anyone].program.sigstop();
                wait();
                self.stations[anyone].program.sigcont();
            }
            Fault::DatabaseSilent => self.with_way(anyone, a_while, Proxy::blackhole),
            Fault::RepliesLost => self.with_way(anyone, a_while, Proxy::swallow_replies),
            Fault::Disconnected => self.with_way(anyone, a_while, Proxy::cut),
            Fault::NetworkSlow => {
                self.with_way(anyone, a_while, |proxy| proxy.delay(Duration::from_millis(30)));
            }
            Fault::SessionsEnded => {
                let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                           WHERE datname = current_database() AND pid <> pg_backend_pid()";
                self.scene.db.psql(end);
            }
            Fault::DatabaseCrashed => {
                self.scene.server.stop_immediate();
                self.scene.server.start_again();
            }
            Fault::SnapshotHeld => {
                let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM postbox_relay; SELECT pg_sleep($); COMMIT";
                self.scene.db.psql(&hold.replace('$', &a_while.as_secs_f64().to_string()));
            }
            Fault::SinkRefuses => self.with_mood(a_while, Mood::Refuses),
            Fault::SinkSlow => self.with_mood(a_while, Mood::Slow),
            Fault::SinkSwallows => self.with_mood(a_while, Mood::Swallows),
        }
    }

    fn with_way(&self, station: usize, a_while: Duration, way: impl FnOnce(&Proxy)) {
        way(&self.stations[station].proxy);
        std::thread::sleep(a_while);
        self.stations[station].proxy.pass();
    }

    fn with_mood(&self, a_while: Duration, mood: Mood) {
        self.scene.receiver.be(mood);
        std::thread::sleep(a_while);
        self.scene.receiver.be(Mood::Willing);
    }

    fn begin_anew(&mut self, station: usize) {
        self.stations[station].program = self.scene.relay(&self.stations[station].proxy);
    }

    /// No relay has ended by itself.
    pub(crate) fn all_live(&mut self) {
        for station in &mut self.stations {
            assert!(station.program.is_running(), "a relay ended by itself:\n{}", station.program.stderr());
        }
    }

    /// Relays end in good order.
    pub(crate) fn end(&mut self) {
        for station in &mut self.stations {
            station.program.wait_for_line("relaying", PATIENCE);
            station.program.stop(PATIENCE);
        }
    }
}
