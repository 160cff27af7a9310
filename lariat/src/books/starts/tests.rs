//! Starts are counted per host and command, and a refusal harms nobody.

use super::*;
use crate::books::tests::Desk;
use contain::Mark;

impl Desk {
    fn start(&self, args: &[&str], most: Rate) -> Result<Generation, TooMany> {
        self.start_by(Member::current().unwrap(), args, most)
    }

    fn start_by(&self, host: Member, args: &[&str], most: Rate) -> Result<Generation, TooMany> {
        let args: Vec<OsString> = args.iter().map(Into::into).collect();
        let session = SessionId::of(Mark::random().unwrap());
        let name = ServerName::given("server").unwrap();
        self.books.count_start(host, &name, ("server".as_ref(), &args), &session, most)
    }

    fn counts(&self) -> Vec<PathBuf> {
        let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten();
        let shelves = list(self.books.starts()).map(|shelf| shelf.unwrap().path());
        shelves.flat_map(list).map(|file| file.unwrap().path()).collect()
    }
}

fn stranger() -> Member {
    Member { start: 1, ..Member::current().unwrap() }
}

const THREE: Rate = Rate { most: 3, per: Duration::from_secs(60) };

#[test]
fn what_people_write() {
    let rate = |most, secs| Ok(Rate { most, per: Duration::from_secs(secs) });
    assert_eq!("30/min".parse(), rate(30, 60));
    assert_eq!("30/min".parse(), Ok(Rate::default()));
    assert_eq!("1/s".parse(), rate(1, 1));
    assert_eq!("1000/h".parse(), rate(1000, 3600));
    assert_eq!("off".parse(), Ok(Rate::OFF));
    for bad in
        ["", "30", "/min", "30/", "30/m", "0/min", "+3/min", "-1/s", "1001/h", "1.5/s", "OFF"]
    {
        assert!(bad.parse::<Rate>().is_err(), "{bad}");
    }
}

#[test]
fn one_more_than_the_most_is_refused_and_others_are_not() {
    let desk = Desk::new();
    for _ in 0..3 {
        desk.start(&["a"], THREE).unwrap();
    }
    let refused = desk.start(&["a"], THREE).unwrap_err();
    assert_eq!((refused.starts, refused.within), (3, THREE.per));
    assert!(refused.wait <= THREE.per && refused.wait > Duration::from_secs(50), "{refused:?}");
    desk.start(&["b"], THREE).unwrap();
    desk.start(&["a", ""], THREE).unwrap();
    desk.start_by(stranger(), &["a"], THREE).unwrap();
    desk.start(&["a"], Rate::OFF).unwrap();
}

#[test]
fn who_keeps_trying_comes_through_when_the_time_is_over() {
    let desk = Desk::new();
    let brief = Rate { most: 2, per: Duration::from_millis(300) };
    desk.start(&[], brief).unwrap();
    desk.start(&[], brief).unwrap();
    let begun = Instant::now();
    let wait = desk.start(&[], brief).unwrap_err().wait;
    let mut refusals = 1;
    while desk.start(&[], brief).is_err() {
        refusals += 1;
        assert!(begun.elapsed() < Duration::from_secs(10), "still refused");
        contain::wait(&mut [], Some(Instant::now() + Duration::from_millis(5)));
    }
    assert!(refusals > 1);
    assert!(begun.elapsed() + Duration::from_millis(2) >= wait, "before it was time");
}

#[test]
fn the_newest_supersedes_and_a_refused_one_does_not() {
    let desk = Desk::new();
    let one = Rate { most: 1, ..THREE };
    let first = desk.start(&[], one).unwrap();
    assert!(!first.is_superseded());
    desk.start(&[], one).unwrap_err();
    assert!(!first.is_superseded());
    desk.start(&["other"], one).unwrap();
    desk.start_by(stranger(), &[], one).unwrap();
    assert!(!first.is_superseded());
    let second = desk.start(&[], Rate::OFF).unwrap();
    assert!(first.is_superseded() && !second.is_superseded());
    // Without the file nobody knows.
    for file in desk.counts() {
        fs::remove_file(file).unwrap();
    }
    assert!(!first.is_superseded() && !second.is_superseded());
}

#[test]
fn of_starts_at_the_same_moment_none_is_lost() {
    let desk = Desk::new();
    let many = Rate { most: 20, per: Duration::from_secs(3600) };
    let (desk, many) = (&desk, &many);
    let results: Vec<_> = std::thread::scope(|scope| {
        let starts = (0..8).map(|_| {
            scope.spawn(move || (0..5).map(|_| desk.start(&[], *many)).collect::<Vec<_>>())
        });
        let starts: Vec<_> = starts.collect();
        starts.into_iter().flat_map(|start| start.join().unwrap()).collect()
    });
    // One that could not get the lock in time is started, but not counted.
    let newest = |g: &&Generation| g.counted.is_some() && !g.is_superseded();
    let counted = results.iter().flatten().filter(|g| g.counted.is_some()).count();
    assert_eq!(counted, 20);
    assert_eq!(results.iter().flatten().filter(newest).count(), 1);
}

#[test]
fn a_broken_file_stops_nobody() {
    let desk = Desk::new();
    desk.start(&["a"], THREE).unwrap();
    let path = desk.counts().remove(0);
    for garbage in [&b""[..], b"{", b"\0\0", b"[1]", b"{\"host\":1}"] {
        fs::write(&path, garbage).unwrap();
        let generation = desk.start(&["a"], THREE).unwrap();
        assert!(generation.counted.is_some() && !generation.is_superseded());
    }
    // Somebody was stopped while it held the lock.
    let holder = File::open(&path).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    assert!(!desk.start(&["a"], THREE).unwrap().is_superseded());
    drop(holder);
    // What is there cannot be a file.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(desk.start(&["a"], THREE).unwrap().counted.is_none());
    fs::remove_dir_all(desk.books.starts()).unwrap();
    fs::write(desk.books.starts(), "").unwrap();
    assert!(desk.start(&["a"], THREE).unwrap().counted.is_none());
}

#[test]
fn no_argument_is_in_the_file_or_its_name() {
    let desk = Desk::new();
    desk.start(&["--token", "hunter2"], THREE).unwrap();
    let path = desk.counts().remove(0);
    let text = fs::read_to_string(&path).unwrap();
    for word in ["hunter2", "token", "server"] {
        assert!(!text.contains(word) && !path.to_string_lossy().contains(word), "{word}");
    }
}

#[test]
fn files_of_dead_hosts_go_and_those_of_living_ones_stay() {
    let desk = Desk::new();
    desk.start(&[], THREE).unwrap();
    let living = desk.counts();
    desk.start_by(stranger(), &[], THREE).unwrap();
    assert_eq!(desk.counts().len(), 2);
    let here = Place::here().unwrap();
    (0..SHELVES).for_each(|number| clean(&desk.books.shelf(number), &here, 7));
    assert_eq!(desk.counts().len(), 2, "not old enough");
    for file in desk.counts() {
        let long_ago = std::time::SystemTime::now() - 2 * KEPT;
        File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
    (0..SHELVES).for_each(|number| clean(&desk.books.shelf(number), &here, 7));
    assert_eq!(desk.counts(), living);
    // After a reboot the same numbers are other processes.
    let rebooted = Place { boot: "another".into(), ..here };
    discard_if_over(&living[0], &rebooted, Duration::ZERO);
    assert_eq!(desk.counts().len(), 0);
}

#[test]
fn counting_costs_the_same_however_many_there_are() {
    let desk = Desk::new();
    let start = |n: usize| desk.start(&[&n.to_string()], Rate::OFF).unwrap();
    let took = |numbers: std::ops::Range<usize>| {
        let (begun, many) = (Instant::now(), numbers.len() as u32);
        numbers.for_each(|n| drop(start(n)));
        begun.elapsed() / many
    };
    let (few, again) = (took(0..500), took(0..500));
    took(500..4000);
    let many = took(5000..5500);
    println!("one start: {few:?}; the same again: {again:?}; among thousands: {many:?}");
    // Not a matter of speed: a start that looked at each of them would take a hundred times as long.
    assert!(many < 20 * few + Duration::from_millis(1), "{few:?} {many:?}");
}
