//! How long a server that asks for the host's roots when it begins is waited for. A machine on which it
//! took long to begin is a slow one.

use std::time::{Duration, Instant};

/// Until it asks: twice as long as it took to begin, within these.
const ASKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Until it has done something with what it was told: a quarter of that, within these.
const DIGESTS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// A server that is back and may ask for what it needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Settling {
    /// Until when it is waited for.
    pub(super) until: Instant,
    /// How long it is given for what it was told.
    digest: Duration,
    /// However much it asks: what waits for it is said by then.
    latest: Instant,
}

impl Settling {
    /// One that took so long to begin, and has.
    pub(super) fn begun(now: Instant, began_in: Duration) -> Settling {
        let within = |time: Duration, [least, most]: [Duration; 2]| time.clamp(least, most);
        let (asks, digest) = (within(began_in * 2, ASKS), within(began_in / 4, DIGESTS));
        Settling { until: now + asks, digest, latest: now + asks + digest }
    }

    /// It was told all that it has asked for.
    pub(super) fn told(self, now: Instant) -> Settling {
        Settling { until: (now + self.digest).min(self.latest), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_slow_to_begin_is_waited_for_longer() {
        let now = Instant::now();
        let millis = |began_in| {
            let settling = Settling::begun(now, Duration::from_millis(began_in));
            let told = settling.told(now);
            ((settling.until - now).as_millis(), (told.until - now).as_millis())
        };
        assert_eq!(millis(100), (1000, 50));
        assert_eq!(millis(2000), (4000, 500));
        assert_eq!(millis(60_000), (10_000, 2000));
    }

    /// A server that asks again and again does not keep its host waiting for ever.
    #[test]
    fn there_is_an_end_to_it() {
        let began = Instant::now();
        let (mut settling, mut now) = (Settling::begun(began, Duration::from_secs(8)), began);
        for _ in 0..100 {
            now = settling.until;
            settling = settling.told(now);
        }
        assert_eq!(settling.until - began, Duration::from_secs(12));
        assert_eq!(now, settling.until);
    }
}
