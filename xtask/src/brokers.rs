//! The brokers that all test programs of a run share: those that are slow to start.

use std::thread::scope;

use postbox_testkit::server::Broker;
use postbox_testkit::{KafkaServer, PulsarServer, RabbitServer};

/// The packages whose tests need brokers.
const PACKAGES: [&str; 5] =
    ["exactly-once", "postbox-cli", "postbox-consumers", "postbox-sinks", "postbox-testkit"];

/// Whether a run of these packages needs brokers; of all packages, when none is chosen.
pub(crate) fn needed(chosen: &[&str]) -> bool {
    chosen.is_empty() || chosen.iter().any(|package| PACKAGES.contains(package))
}

/// Running brokers. They end with this value, or by their watchdogs.
pub(crate) struct Brokers {
    rabbit: Option<RabbitServer>,
    kafka: Option<KafkaServer>,
    pulsar: Option<PulsarServer>,
}

impl Brokers {
    /// Starts them side by side. One that does not start is left out: tests that need it find out why, and say so.
    pub(crate) fn start() -> Self {
        scope(|scope| {
            let rabbit = scope.spawn(RabbitServer::try_start);
            let kafka = scope.spawn(KafkaServer::try_start);
            let pulsar = PulsarServer::try_start().ok();
            let (rabbit, kafka) = (rabbit.join(), kafka.join());
            Self { rabbit: rabbit.ok().and_then(Result::ok), kafka: kafka.ok().and_then(Result::ok), pulsar }
        })
    }

    /// The variables by which test programs find them.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let brokers: [(_, Option<&Broker>); 3] = [
            (RabbitServer::URL_ENV, self.rabbit.as_deref()),
            (KafkaServer::URL_ENV, self.kafka.as_deref()),
            (PulsarServer::URL_ENV, self.pulsar.as_deref()),
        ];
        brokers.into_iter().filter_map(|(name, broker)| Some((name, broker?.urls()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::needed;

    #[test]
    fn only_some_packages_need_brokers() {
        assert!(needed(&[]) && needed(&["postbox-core", "postbox-sinks"]));
        assert!(!needed(&["postbox-core"]));
    }
}
