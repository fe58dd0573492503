//! A way to the broker that can be led elsewhere. Kafka and Pulsar tell their clients one address for good: this one, which leads
//! to whatever proxy a test has put before the broker.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Listens on a port of its own until the process ends.
#[derive(Debug)]
pub(crate) struct Detour {
    addr: SocketAddr,
    to: Arc<Mutex<Option<SocketAddr>>>,
}

impl Detour {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let to: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let way = Arc::clone(&to);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Where nobody listens the client's connection is closed, too.
                if let Some(server) = way.lock().unwrap().and_then(|to| TcpStream::connect(to).ok()) {
                    join(client, server);
                }
            }
        });
        Self { addr, to }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// New connections lead there.
    pub(crate) fn lead_to(&self, addr: SocketAddr) {
        *self.to.lock().unwrap() = Some(addr);
    }
}

/// Passes bytes on in both directions until one side ends.
fn join(client: TcpStream, server: TcpStream) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
    }
    let (client2, server2) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    for (mut from, mut to) in [(client, server2), (server, client2)] {
        thread::spawn(move || {
            io::copy(&mut from, &mut to).ok();
            for stream in [from, to] {
                stream.shutdown(Shutdown::Both).ok();
            }
        });
    }
}
