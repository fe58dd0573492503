//! How far the database's clock is from this machine's.

use postbox_core::{Code, Finding};

/// Differences up to this many seconds are not reported.
const LITTLE: f64 = 2.0;

/// The server said `server` (seconds of the Unix epoch) between `asked` and `answered` of this machine.
pub(crate) fn finding(asked: f64, answered: f64, server: f64) -> Finding {
    let off = if server < asked { server - asked } else { (server - answered).max(0.0) };
    if off.abs() <= LITTLE {
        return Finding::good("clock", "the database's clock and this machine's agree");
    }
    let where_to = if off > 0.0 { "ahead of" } else { "behind" };
    let what = format!(
        "the database's clock is {:.0}s {where_to} this machine's: delivery goes by the database's, logs and times given here do not",
        off.abs()
    );
    Finding::doubtful("clock", Code::ClockDiffers, what, "let both machines keep their time by NTP")
}

#[cfg(test)]
mod tests {
    use postbox_core::Level;

    use super::finding;

    #[test]
    fn a_slow_answer_is_no_wrong_clock() {
        for (asked, answered, server, level) in [
            (100.0, 100.1, 100.05, Level::Good),
            (100.0, 110.0, 105.0, Level::Good),
            (100.0, 110.0, 111.5, Level::Good),
            (100.0, 100.1, 97.5, Level::Doubtful),
            (100.0, 100.1, 700.0, Level::Doubtful),
        ] {
            assert_eq!(finding(asked, answered, server).level, level, "{asked} {answered} {server}");
        }
        assert!(finding(100.0, 100.1, 700.0).what.contains("600s ahead"));
    }
}
