//! Order: how fast a backlog is delivered where the events of an aggregate go one after another, compared with the same relay
//! that keeps to no order.

use crate::drain::{Bench, TOPIC, median};

/// What the events are about: a name, and the aggregate of the event `n` as SQL.
const SHAPES: [(&str, &str); 4] = [
    ("10,000 aggregates", "(n % 10000)::text"),
    ("100 aggregates", "(n % 100)::text"),
    ("all distinct", "n::text"),
    ("a quarter of one in front", "CASE WHEN n <= {events} / 4 THEN 'one' ELSE (n % 10000)::text END"),
];

/// Alternates a drain without order and one in order for each shape; prints each round, then medians and ratios.
pub(crate) async fn run(claim: &str, events: usize, rounds: usize, batch: usize) {
    let bench = Bench::new(events, batch).await;
    println!(
        "drain of {events} events in order, claim {claim}, 300-byte payloads, batch {batch}, {rounds} rounds"
    );
    for (name, aggregate) in SHAPES {
        let aggregate = aggregate.replace("{events}", &events.to_string());
        let (mut free, mut ordered) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            for (ordering, rates) in [("none", &mut free), ("aggregate", &mut ordered)] {
                bench.make_ordered_table(&aggregate).await;
                let args = ["--sink", "null:", "--claim", claim, "--ordering", ordering];
                bench.drain(&args, TOPIC).await;
                rates.push(bench.rate(TOPIC).await);
            }
        }
        let each: Vec<String> =
            free.iter().zip(&ordered).map(|(free, ordered)| format!("{:.2}", ordered / free)).collect();
        let (free, ordered) = (median(&mut free), median(&mut ordered));
        println!(
            "{name:>26}: without order {free:>8.0}/s, in order {ordered:>8.0}/s, ratio {:.2} (rounds {})",
            ordered / free,
            each.join(", ")
        );
    }
}
