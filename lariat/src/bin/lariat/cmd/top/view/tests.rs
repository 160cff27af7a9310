use super::*;
use serde_json::json;

fn one(at: usize, state: &str) -> Living {
    let process = |pid: usize, ppid: usize, name: &str| json!({"pid": pid, "ppid": ppid, "start": 1, "command": name, "rss_bytes": 1 << 20});
    serde_json::from_value(json!({
        "session": format!("{at:015x}"), "within": null, "server": format!("server-{at:02}"),
        "host": {"pid": 7, "name": "codex"}, "wrapper": 8, "state": state, "idle_s": at as f64,
        "evidence": [], "backend": "descent", "started": "2026-11-15T20:23:00.125Z",
        "age_s": 100.0 - at as f64, "processes": 2, "rss_bytes": (at as u64 + 1) << 20,
        "cpu_ms": 100, "cpu_percent": 0.5,
        "tree": [process(100 + at, 9, "npx"), process(200 + at, 100 + at, "no\u{1b}de")],
    }))
    .unwrap()
}

fn view(count: usize) -> View {
    let mut view = View::new(Sort::default(), true);
    view.update((0..count).map(|at| one(at, if at == 0 { "busy" } else { "ready" })).collect());
    view
}

fn drawn(view: &mut View, size: (usize, usize)) -> Vec<String> {
    let mut canvas = Canvas::new(size, true);
    view.draw(&mut canvas, Duration::from_secs(60));
    canvas.lines()
}

fn chosen(view: &View) -> String {
    view.find(view.chosen.as_ref().unwrap()).unwrap().server.to_string()
}

#[test]
fn the_whole_picture_is_there() {
    let lines = drawn(&mut view(20), (100, 30));
    let text = lines.join("\n");
    assert!(lines[0].contains("20 sessions") && lines[0].contains("1 busy"), "{text}");
    assert!(lines[1].contains("40 processes") && lines[1].contains("10.0 %CPU"), "{text}");
    assert!(lines[2].contains("RSS↓"), "{text}");
    // The largest first, and what it consists of below.
    assert!(lines[3].contains("server-19") && lines[3].contains("20.0 MiB"), "{text}");
    assert!(text.contains("119 npx") && text.contains("└─ 219 no?de"), "{text}");
    assert!(text.contains("memory 20.0 MiB, peak 20.0 MiB") && text.contains('█'), "{text}");
    assert!(lines[29].contains("q quit"), "{text}");
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn any_size_is_drawn() {
    for size in [(40, 10), (80, 24), (1, 1), (0, 0), (200, 3), (10, 60), (300, 100)] {
        for count in [0, 1, 500] {
            let mut view = view(count);
            view.key(Key::End);
            drawn(&mut view, size);
            view.key(Key::Char('?'));
            drawn(&mut view, size);
        }
    }
    let small = drawn(&mut view(20), (40, 10));
    assert!(small[0].contains("20 sessions") && small[2].contains("server-19"), "{small:#?}");
    assert!(small[9].contains("choose"), "{small:#?}");
    let mut ascii = View::new(Sort::default(), false);
    ascii.update(vec![one(1, "ready")]);
    assert!(drawn(&mut ascii, (100, 30)).iter().all(|line| line.is_ascii()));
}

#[test]
fn the_chosen_one_stays_chosen_and_in_sight() {
    let mut view = view(50);
    assert_eq!(chosen(&view), "server-49");
    (0..30).for_each(|_| drop(view.key(Key::Down)));
    assert_eq!(chosen(&view), "server-19");
    assert!(drawn(&mut view, (80, 24)).iter().any(|line| line.contains("server-19")));
    view.key(Key::Char('n'));
    assert_eq!(chosen(&view), "server-19");
    let lines = drawn(&mut view, (80, 24));
    assert!(lines.iter().any(|line| line.starts_with(" server-19")), "{lines:#?}");
    view.key(Key::Home);
    assert_eq!(chosen(&view), "server-00");
    // Gone: whoever is in its place.
    view.update((1..50).map(|at| one(at, "ready")).collect());
    assert_eq!(chosen(&view), "server-01");
    view.update(Vec::new());
    assert_eq!(view.key(Key::Char('e')), Wish::Nothing);
    assert!(drawn(&mut view, (80, 24)).join("\n").contains("no sessions"));
}

#[test]
fn nothing_ends_without_a_yes() {
    let mut view = view(3);
    let Wish::Doubt(session) = view.key(Key::Char('e')) else { panic!("no doubt") };
    for no in [Key::Char('n'), Key::Enter, Key::Escape, Key::Char('e'), Key::Down] {
        view.ask(session.clone(), "end server-02?");
        let foot = drawn(&mut view, (80, 24)).pop().unwrap();
        assert!(foot.contains("end server-02? y/N"), "{foot}");
        assert_eq!(view.key(no), Wish::Nothing);
        let foot = drawn(&mut view, (80, 24)).pop().unwrap();
        assert!(foot.contains("nothing was ended"), "{foot}");
        // And the question is over.
        assert_eq!(view.key(Key::Char('y')), Wish::Nothing);
    }
    view.ask(session.clone(), "end server-02?");
    assert_eq!(view.key(Key::Char('y')), Wish::End(session));
}

#[test]
fn sorting_is_shown_and_can_be_reversed() {
    let mut view = view(3);
    let heads = |view: &mut View| drawn(view, (120, 24))[2].clone();
    view.key(Key::Char('r'));
    assert!(heads(&mut view).contains("RSS↑"), "{}", heads(&mut view));
    assert!(drawn(&mut view, (120, 24))[3].contains("server-00"));
    for (key, head) in
        [('n', "SERVER↑"), ('c', "%CPU↓"), ('a', "AGE↓"), ('i', "IDLE↓"), ('s', "AGE↓")]
    {
        view.key(Key::Char(key));
        assert!(heads(&mut view).contains(head), "{key}: {}", heads(&mut view));
    }
    view.key(Key::Char('q'));
    assert_eq!(view.key(Key::Char('q')), Wish::Leave);
}
