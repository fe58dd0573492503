//! What a server gives, or holds back: limits of connections, and snapshots of those that replicate.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use postbox_testkit::{PgServer, eventually_blocking};
use serde_json::Value;

use crate::common::{LONG, Place, url_as};
use crate::{doctor, findings, place_on, server};

/// A role or a database may have a limit of its own; superusers have none.
#[test]
fn a_connection_limit_of_a_role_or_a_database_is_named() {
    let place = place_on(server());
    let (name, role) = (&place.db.name, format!("limited_{}", place.db.name));
    place.db.psql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT pg_read_all_stats TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
    ));
    let url = url_as(&place.db.url, &role);
    let short = |env: &[(&str, &str)]| {
        let (done, json) = doctor(&place, &[], env);
        let all = findings(&json);
        let short = all.iter().find(|finding| finding["code"] == "OUTBOX_CONNECTIONS_SHORT");
        (done.code, short.map(|finding| finding["what"].as_str().unwrap().to_owned()))
    };
    let limited = [("DATABASE_URL", url.as_str())];
    assert_eq!(short(&limited).1, None, "no limit");
    place.db.psql(&format!("ALTER ROLE {role} CONNECTION LIMIT 4"));
    let (code, what) = short(&limited);
    assert!(code == 3 && what.as_ref().unwrap().contains("of the role's CONNECTION LIMIT"), "{what:?}");
    assert_eq!(short(&[]).1, None, "it is that role's alone");
    place
        .db
        .psql(&format!("ALTER ROLE {role} CONNECTION LIMIT -1; ALTER DATABASE {name} CONNECTION LIMIT 8"));
    let (code, what) = short(&limited);
    assert!(code == 3 && what.as_ref().unwrap().contains("of the database's CONNECTION LIMIT"), "{what:?}");
    place
        .db
        .psql(&format!("ALTER DATABASE {name} CONNECTION LIMIT -1; DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// What a standby with `hot_standby_feedback` says to its server: the oldest transaction that its queries still see. One that
/// only says so is enough; it stays connected as long as the stream lives.
fn standby(place: &Place, slot: Option<&str>, xmin: u32) -> TcpStream {
    let said = place.db.psql("SELECT current_user, pg_current_wal_flush_lsn(), inet_server_port()");
    let said: Vec<&str> = said.split('|').collect();
    let mut stream = TcpStream::connect(("127.0.0.1", said[2].parse::<u16>().unwrap())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut send = |kind: Option<u8>, body: &[u8]| {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        stream.write_all(&[kind.as_slice(), &length, body].concat()).unwrap();
    };
    let parameters = format!("user\0{}\0replication\0true\0application_name\0reader\0\0", said[0]);
    send(None, &[&196_608_u32.to_be_bytes(), parameters.as_bytes()].concat());
    let slot = slot.map(|slot| format!("SLOT {slot} ")).unwrap_or_default();
    send(Some(b'Q'), format!("START_REPLICATION {slot}PHYSICAL {}\0", said[1]).as_bytes());
    // Until both sides may copy.
    let (mut head, mut reader) = ([0; 5], stream.try_clone().unwrap());
    while head[0] != b'W' {
        reader.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4];
        reader.read_exact(&mut body).unwrap();
        assert_ne!(head[0], b'E', "{}", String::from_utf8_lossy(&body));
    }
    // The time, the transaction and its epoch, none of the catalogue.
    let feedback = [&b"h"[..], &[0; 8], &xmin.to_be_bytes(), &[0; 12]].concat();
    let length = u32::try_from(feedback.len() + 4).unwrap().to_be_bytes();
    stream.write_all(&[&b"d"[..], &length, &feedback].concat()).unwrap();
    stream
}

#[test]
fn an_old_snapshot_of_a_standby_or_of_a_slot_is_named() {
    let server = PgServer::start();
    let place = place_on(&server);
    let old = place.db.psql("SELECT pg_current_xact_id()").parse().unwrap();
    let young = doctor(&place, &["--sink", "file:out.jsonl"], &[]).1;
    assert!(findings(&young).iter().all(|finding| finding["code"] != "OUTBOX_SNAPSHOT_HELD"), "{young:#}");
    place
        .db
        .psql("DO $$ BEGIN FOR i IN 1..100100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$");
    place.db.psql("SELECT pg_create_physical_replication_slot('behind')");
    for (slot, held, says) in [
        (
            None,
            "pg_stat_replication WHERE backend_xmin IS NOT NULL",
            "standby reader holds a snapshot that is 100",
        ),
        (
            Some("behind"),
            "pg_replication_slots WHERE xmin IS NOT NULL",
            "replication slot behind holds a snapshot",
        ),
    ] {
        let _standby = standby(&place, slot, old);
        let told = || place.db.psql(&format!("SELECT count(*) FROM {held}")) == "1";
        eventually_blocking("the server to know", LONG, told);
        let (done, json) = doctor(&place, &[], &[]);
        let all = findings(&json);
        let named =
            all.iter().find(|finding| finding["code"] == "OUTBOX_SNAPSHOT_HELD").map(|one| &one["what"]);
        let what = named.and_then(Value::as_str).unwrap_or_default();
        assert!(done.code == 3 && what.starts_with(says), "{slot:?}: {json:#}");
    }
}
