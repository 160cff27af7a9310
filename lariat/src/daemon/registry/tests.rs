//! What is refused before anything is started. The rest needs servers: `tests/daemon.rs`.

use super::*;

const FEW: Limits = Limits {
    servers_per_session: 3,
    sessions: 0,
    servers: 2,
    processes_per_session: 1,
    processes: 1,
};

#[test]
fn each_limit_is_named_when_it_is_reached() {
    let admit = |limits, wanted| Table::default().admit(&limits, None, wanted);
    let refused = |limits, wanted| {
        let problem = admit(limits, wanted).unwrap_err();
        assert_eq!(problem.status, 429);
        problem.detail
    };
    assert_eq!(admit(Limits::default(), 32), Ok(()));
    assert!(refused(FEW, 4).contains("--max-servers-per-session"));
    assert!(refused(FEW, 1).contains("--max-sessions"));
    let sessions = Limits { sessions: 1, ..FEW };
    assert_eq!(admit(sessions, 2), Ok(()));
    assert!(refused(sessions, 3).contains("--max-servers."));
}

#[test]
fn who_is_ending_admits_nobody() {
    let table = Table { closing: true, ..Table::default() };
    assert_eq!(table.admit(&Limits::default(), None, 0).unwrap_err().status, 503);
}

#[tokio::test(flavor = "current_thread")]
async fn other_peoples_processes_do_not_count() {
    // There are more on this machine, but none of them is of a session.
    assert_eq!(Registry::new(FEW).check_processes(None), Ok(()));
    let none = Limits { processes: 0, ..FEW };
    let problem = Registry::new(none).check_processes(None).unwrap_err();
    assert!(problem.detail.contains("--max-processes"), "{}", problem.detail);
}

#[tokio::test(flavor = "current_thread")]
async fn without_sessions_there_is_nothing_to_end() {
    let registry = Registry::new(FEW);
    assert!(registry.is_empty() && registry.close().await.is_empty());
    assert_eq!(registry.find("x").unwrap_err().status, 404);
    assert_eq!(registry.snapshot().await, Snapshot::default());
}
