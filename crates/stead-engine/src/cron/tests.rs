use proptest::prelude::*;

use super::*;

fn next(cron: &str, zone: &str, after: &str) -> String {
    let after = Timestamp::parse(after).unwrap();
    let fire = next_fire(&Cron::parse(cron).unwrap(), &Zone::parse(zone).unwrap(), after).unwrap();
    fire.to_string().replace(":00.000000Z", "Z")
}

#[test]
fn schedules_fire_at_the_next_fitting_minute() {
    for (cron, after, expected) in [
        ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01Z"),
        ("* * * * *", "2026-01-01T00:00:59Z", "2026-01-01T00:01Z"),
        ("*/15 * * * *", "2026-01-01T00:14:00Z", "2026-01-01T00:15Z"),
        ("*/15 * * * *", "2026-01-01T00:15:00Z", "2026-01-01T00:30Z"),
        ("5/20 1 * * *", "2026-01-01T01:25:00Z", "2026-01-01T01:45Z"),
        ("0 9-17/4 * * MON-FRI", "2026-01-02T17:00:00Z", "2026-01-05T09:00Z"),
        ("0 0 1 jan,JUL *", "2026-01-01T00:00:00Z", "2026-07-01T00:00Z"),
        ("0 0 * * 7", "2026-01-01T00:00:00Z", "2026-01-04T00:00Z"),
        ("0 0 * * 0", "2026-01-01T00:00:00Z", "2026-01-04T00:00Z"),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00Z"),
        ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00Z"),
        ("0 0 31 * *", "2026-02-01T00:00:00Z", "2026-03-31T00:00Z"),
        // Both day fields restricted: either matches.
        ("0 0 13 * 5", "2026-01-01T00:00:00Z", "2026-01-02T00:00Z"),
        ("0 0 13 * 5", "2026-01-09T00:00:00Z", "2026-01-13T00:00Z"),
        // One that holds `*` restricts nothing by itself, with a step too: both match.
        ("0 0 */2 * 5", "2026-01-01T00:00:00Z", "2026-01-09T00:00Z"),
        ("0 0 13 * */2", "2026-01-01T00:00:00Z", "2026-01-13T00:00Z"),
        ("0 0 14 * */2", "2026-01-01T00:00:00Z", "2026-02-14T00:00Z"),
    ] {
        assert_eq!(next(cron, "UTC", after), expected, "{cron} after {after}");
    }
}

#[test]
fn local_times_in_a_gap_fire_at_its_end_and_doubled_ones_at_the_first() {
    // Vienna 2026: clocks go from 02:00 to 03:00 on 29 March (01:00 UTC), from 03:00 to 02:00 on 25 October (01:00 UTC).
    assert_eq!(next("30 2 * * *", "Europe/Vienna", "2026-03-28T12:00:00Z"), "2026-03-29T01:00Z");
    assert_eq!(next("0 2 * * *", "Europe/Vienna", "2026-03-28T12:00:00Z"), "2026-03-29T01:00Z");
    assert_eq!(next("30 2 * * *", "Europe/Vienna", "2026-03-29T01:00:00Z"), "2026-03-30T00:30Z");
    assert_eq!(next("30 2 * * *", "Europe/Vienna", "2026-10-24T12:00:00Z"), "2026-10-25T00:30Z");
    assert_eq!(next("30 2 * * *", "Europe/Vienna", "2026-10-25T00:30:00Z"), "2026-10-26T01:30Z");
    // Samoa left out 30 December 2011 altogether.
    assert_eq!(next("0 12 30 12 *", "Pacific/Apia", "2011-12-29T12:00:00Z"), "2011-12-30T10:00Z");
}

#[test]
fn malformed_schedules_are_refused_with_the_field() {
    for (text, part) in [
        ("* * * *", "found 4"),
        ("* * * * * *", "found 6"),
        ("60 * * * *", "field `minute`"),
        ("* 24 * * *", "field `hour`"),
        ("* * 0 * *", "field `day`"),
        ("* * * 13 *", "jan to dec"),
        ("* * * * 8", "sun to sat"),
        ("* * * * mo", "field `weekday`"),
        ("5-1 * * * *", "runs backwards"),
        ("*/0 * * * *", "not a step"),
        ("1, * * * *", "``"),
        ("+1 * * * *", "`+1`"),
        ("@daily", "found 1"),
        ("0 0 31 2 *", "never fire"),
        ("0 0 31 4,6 *", "never fire"),
    ] {
        let error = Cron::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let error = Zone::parse("Europe/Viena").unwrap_err().to_string();
    assert!(error.contains("Europe/Vienna"), "{error}");
    assert!(Zone::parse("nowhere at all").is_err());
}

proptest! {
    #[test]
    fn a_fire_lies_after_and_fits_the_minute(minute in 0u8..60, hour in 0u8..24, after in 0i64..4_000_000_000) {
        let zone = Zone::parse("America/New_York").unwrap();
        let after = Timestamp::from_micros(after * 1_000_000);
        let cron = Cron::parse(&format!("{minute} {hour} * * *")).unwrap();
        let fire = next_fire(&cron, &zone, after).unwrap();
        prop_assert!(fire > after);
        let days = (fire.as_micros() - after.as_micros()) / 86_400_000_000;
        prop_assert!(days < 2);
        let again = next_fire(&cron, &zone, fire).unwrap();
        prop_assert!(again.as_micros() - fire.as_micros() >= 22 * 3_600_000_000);
    }

    #[test]
    fn parsing_never_panics(text in "[0-9*/,a-z -]{0,24}") {
        if let Ok(cron) = Cron::parse(&text) {
            let zone = Zone::parse("UTC").unwrap();
            prop_assert!(next_fire(&cron, &zone, Timestamp::from_micros(0)).is_some());
        }
    }
}
