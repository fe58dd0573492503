//! [`Guard`]: which addresses a webhook may be sent to (hazard 52).
//!
//! Whoever may name a webhook's host could otherwise have the relay talk to what only the relay can reach: a metadata
//! service, a database, the machine itself. So every address is judged, not the name, and the addresses that were
//! judged are those that are connected to ([`Pinned`](super::resolve::Pinned)).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use url::Host;

/// What an operator allows beyond the public internet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Guard {
    /// Every address is allowed.
    pub(super) allow_private: bool,
    pub(super) networks: Vec<Network>,
    /// Names whose addresses are allowed whatever they are; lower case, without a dot at the end.
    pub(super) hosts: Vec<String>,
}

/// Why an address is not sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address {address} is refused: it is {kind}; allow it by `allow` or `allow_private`")]
pub(super) struct Refused {
    pub(super) address: IpAddr,
    pub(super) kind: &'static str,
}

impl Guard {
    /// Adds an entry of the option `allow`: an address, a network such as `10.0.0.0/8`, or a host's name.
    ///
    /// # Errors
    /// In words, when it is none of them.
    pub(super) fn allow(&mut self, entry: &str) -> Result<(), String> {
        if let Ok(network) = entry.parse() {
            self.networks.push(network);
            return Ok(());
        }
        if entry.contains('/') {
            return Err(format!("{entry:?} is not a network such as 10.0.0.0/8 or fd00::/8"));
        }
        match Host::parse(entry) {
            Ok(Host::Domain(name)) => self.hosts.push(normal(&name).to_owned()),
            // An odd spelling of an address, such as 127.1.
            Ok(Host::Ipv4(address)) => self.networks.push(Network::of(address.into())),
            Ok(Host::Ipv6(address)) => self.networks.push(Network::of(address.into())),
            Err(_) => return Err(format!("{entry:?} is neither an address, a network nor a host's name")),
        }
        Ok(())
    }

    /// Whether the operator named this host, by its name or by a network around its address.
    pub(super) fn names(&self, host: &Host<&str>) -> bool {
        match host {
            Host::Domain(name) => self.has_host(name),
            Host::Ipv4(address) => self.has_address((*address).into()),
            Host::Ipv6(address) => self.has_address((*address).into()),
        }
    }

    pub(super) fn has_host(&self, name: &str) -> bool {
        self.hosts.iter().any(|host| host == normal(name))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let address = meant(address);
        self.networks.iter().any(|network| network.holds(address))
    }

    /// Judges one address.
    ///
    /// # Errors
    /// When it is not public and nobody allowed it.
    pub(super) fn check(&self, address: IpAddr) -> Result<(), Refused> {
        match special(meant(address)) {
            Some(kind) if !self.allow_private && !self.has_address(address) => Err(Refused { address, kind }),
            _ => Ok(()),
        }
    }
}

/// A name as names are compared: `example.com.` is `example.com`.
fn normal(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Whether the host is this machine by its name or address, so that nothing travels over a network.
pub(super) fn is_this_machine(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = normal(name);
            name == "localhost" || name.ends_with(".localhost")
        }
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => meant((*address).into()).is_loopback(),
    }
}

/// The address that a packet to this one reaches in the end: IPv4 inside IPv6 is unpacked. (NAT64 too: in a network
/// without IPv4 every public IPv4 host looks like that.)
fn meant(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let is_nat64 = v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    match v6.to_ipv4_mapped() {
        Some(v4) => v4.into(),
        None if is_nat64 => last_four(v6).into(),
        None => address,
    }
}

fn last_four(v6: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = v6.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// What an address is, if it is not one of the public internet.
fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

/// The IANA registry of special-purpose addresses, and multicast.
fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    Some(match address.octets() {
        [0, ..] => "an unspecified address",
        [127, ..] => "a loopback address",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "a private address",
        [169, 254, ..] => "a link-local address",
        [100, 64..=127, ..] => "an address of a provider's own network (CGNAT)",
        [192, 0, 0, _] => "an address for protocols",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "an address for documentation",
        [198, 18..=19, ..] => "an address for benchmarks",
        [192, 88, 99, _] => "a relay of 6to4",
        [224..=239, ..] => "a multicast address",
        [255, 255, 255, 255] => "the broadcast address",
        [240..=255, ..] => "a reserved address",
        _ => return None,
    })
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => "an unspecified address",
        [0, 0, 0, 0, 0, 0, 0, 1] => "a loopback address",
        // The deprecated way to write IPv4 as IPv6, and what else was ever under zeros.
        [0, ..] => "an address of an old form (IPv4-compatible)",
        [0x64, 0xff9b, ..] => "an address of a local NAT64",
        [0x100, 0, 0, 0, ..] => "an address that discards",
        // Tunnels through IPv4: where they end cannot be judged.
        [0x2001, 0, ..] => "a Teredo tunnel",
        [0x2002, ..] => "a 6to4 tunnel",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => "an address for documentation",
        [0x2001, 0..=0x1ff, ..] => "an address for protocols",
        [0xfc00..=0xfdff, ..] => "a unique-local address",
        [0xfe80..=0xfebf, ..] => "a link-local address",
        [0xfec0..=0xfeff, ..] => "a site-local address",
        [0xff00..=0xffff, ..] => "a multicast address",
        // Only 2000::/3 has ever been given out for the internet: whatever is new is refused until it is known.
        [0x2000..=0x3fff, ..] => return None,
        _ => "a reserved address",
    })
}

/// Addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    fn of(address: IpAddr) -> Self {
        let address = meant(address);
        Self { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    fn holds(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differ = u32::from(network) ^ u32::from(address);
                differ.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differ = u128::from(network) ^ u128::from(address);
                differ.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let Some((address, bits)) = text.split_once('/') else {
            return text.parse().map(Self::of).map_err(drop);
        };
        let address: IpAddr = address.parse().map_err(drop)?;
        let bits = bits.parse().map_err(drop)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most { Err(()) } else { Ok(Self { address, bits }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}
