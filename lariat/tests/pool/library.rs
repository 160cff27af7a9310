//! The pool as a Rust host has it, without a daemon: the same storm, and what only a spec can say.

use crate::answers::{Era, judge_answers, storm};
use crate::client::Client;
use crate::stage::{LARIAT, PATIENCE, Stage, trial};
use lariat::contain::{Choice, Ladder};
use lariat::pool::{Config, Pool, Server, View, Want};
use lariat::spec::{ServerSpec, Share};
use libtest_mimic::Trial;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use trials::until;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial("library::everybody_gets_their_own", everybody_gets_their_own),
        trial("library::never_means_never", never_means_never),
        trial("library::persons_are_kept_apart", persons_are_kept_apart),
        trial("library::max_sessions", max_sessions),
        trial("library::nothing_outlives_it", nothing_outlives_it),
    ]
}

fn everybody_gets_their_own() {
    let stage = Stage::without_daemon();
    let host = Host::start(&stage);
    let want = host.want(&stage);
    let tally = storm(30, 200, Era::Legacy, PATIENCE, &|| host.join(&want));
    let mut last = host.join(&want);
    last.greet();
    judge_answers(&tally, &mut last);
    drop(last);
    host.close();
    stage.assert_gone();
}

/// Private is the rule.
fn never_means_never() {
    let stage = Stage::without_daemon();
    let host = Host::start(&stage);
    let want = Want { share: Share::Never, ..host.want(&stage) };
    let mut clients = [host.join(&want), host.join(&want)];
    clients.iter_mut().for_each(Client::greet);
    let [one, two] = clients.each_mut().map(Client::server);
    assert_ne!(one, two);
    drop(clients);
    host.close();
    stage.assert_gone();
}

fn persons_are_kept_apart() {
    let stage = Stage::without_daemon();
    let host = Host::start(&stage);
    let mine = host.want(&stage);
    let theirs = Want { principal: "somebody else".into(), ..mine.clone() };
    let mut clients = [&mine, &theirs, &mine, &theirs].map(|want| host.join(want));
    clients.iter_mut().for_each(Client::greet);
    let servers = clients.each_mut().map(Client::server);
    assert!(servers[0] == servers[2] && servers[1] == servers[3], "{servers:?}");
    assert_ne!(servers[0], servers[1]);
    drop(clients);
    host.close();
    stage.assert_gone();
}

/// The third of two gets another process.
fn max_sessions() {
    let stage = Stage::without_daemon();
    let host = Host::start(&stage);
    let mut want = host.want(&stage);
    Arc::make_mut(&mut want.server).spec.max_sessions = NonZero::new(2);
    let mut clients: Vec<Client> = (0..5).map(|_| host.join(&want)).collect();
    clients.iter_mut().for_each(Client::greet);
    let mut servers: Vec<i32> = clients.iter_mut().map(Client::server).collect();
    servers.sort_unstable();
    servers.dedup();
    assert_eq!(servers.len(), 3, "{servers:?}");
    let mut sessions: Vec<usize> = host.view().iter().map(|one| one.sessions).collect();
    sessions.sort_unstable();
    assert_eq!(sessions, [1, 2, 2]);
    drop(clients);
    host.close();
    stage.assert_gone();
}

fn nothing_outlives_it() {
    let stage = Stage::without_daemon();
    let host = Host::start(&stage);
    let want = host.want(&stage);
    let mut clients = [host.join(&want), host.join(&want)];
    clients.iter_mut().for_each(Client::greet);
    assert_eq!(clients[0].server(), clients[1].server());
    host.close();
    for client in &mut clients {
        while client.hear(PATIENCE).is_some() {}
        assert!(client.is_over(), "its output stays open");
    }
    stage.assert_gone();
}

/// A host with a pool, in a thread of its own, that serves clients over sockets.
struct Host {
    pool: Pool,
    guests: UnboundedSender<(Want, UnixStream)>,
    thread: JoinHandle<()>,
}

impl Host {
    fn start(stage: &Stage) -> Host {
        let rung = Duration::from_millis(300);
        let config = Config {
            state_dir: stage.path("state"),
            holder: Some(LARIAT.into()),
            ladder: Ladder { grace: rung, term_grace: rung, ..Ladder::default() },
            backend: Choice::Auto,
            docker: None,
            max_containers: 0,
        };
        let pool = Pool::new(config).expect("a pool");
        let (guests, coming) = unbounded_channel();
        let kept = pool.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(serve(kept, coming));
        });
        Host { pool, guests, thread }
    }

    fn want(&self, stage: &Stage) -> Want {
        let words = stage.checker(&[]);
        let spec = ServerSpec::new(words[0].clone()).args(words[1..].iter().cloned());
        Want {
            server: Arc::new(Server { name: "checker".into(), spec, environment: None }),
            principal: "".into(),
            share: Share::Strict,
            host: None,
            linger: Duration::from_secs(20),
        }
    }

    fn join(&self, want: &Want) -> Client {
        let (theirs, ours) = UnixStream::pair().expect("a pair");
        self.guests.send((want.clone(), ours)).expect("a host");
        let from = theirs.try_clone().expect("a descriptor");
        Client::over(OwnedFd::from(theirs), OwnedFd::from(from)).hanging_up()
    }

    fn view(&self) -> Vec<View> {
        self.pool.view()
    }

    /// Ends it all, with receipts.
    #[track_caller]
    fn close(self) {
        let Host { pool, guests, thread } = self;
        drop((pool, guests));
        assert!(until(PATIENCE, || thread.is_finished()), "the host does not end");
        thread.join().expect("it does not panic");
    }
}

/// Serves whoever comes, until nobody can come any more.
async fn serve(pool: Pool, mut coming: UnboundedReceiver<(Want, UnixStream)>) {
    while let Some((want, stream)) = coming.recv().await {
        stream.set_nonblocking(true).expect("a socket");
        let stream = tokio::net::UnixStream::from_std(stream).expect("a socket");
        tokio::spawn(serve_one(pool.clone(), want, stream));
    }
    let ended = pool.close().await;
    assert_eq!(ended.unaccounted, [""; 0]);
    for receipt in ended.receipts {
        assert!(receipt.survivors.is_empty(), "{receipt:?}");
    }
}

async fn serve_one(pool: Pool, want: Want, stream: tokio::net::UnixStream) {
    let (mut mouth, mut ear) = pool.join(want).split();
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).split(b'\n');
    let speaking = async {
        while let Ok(Some(line)) = lines.next_segment().await {
            if mouth.say(line).await.is_err() {
                return std::future::pending().await;
            }
        }
        mouth.finish(PATIENCE).await;
    };
    let hearing = async {
        let mut said = Vec::new();
        while ear.fill(&mut said).await {
            if to.write_all(&said).await.is_err() {
                return;
            }
            said.clear();
        }
    };
    tokio::pin!(hearing);
    tokio::select! {
        () = &mut hearing => {}
        () = speaking => {
            // What has been said already is still heard.
            tokio::time::timeout(Duration::from_millis(200), hearing).await.ok();
        }
    }
}
