//! `lariat top`: who lives, as it changes, on a terminal.

mod canvas;
mod history;
mod sort;
mod terminal;
mod view;

use super::tree::since_boot;
use crate::summon::{place, speak};
use crate::{env, shelf, show};
use canvas::{Canvas, Tone};
use lariat::books::{Books, Onlooker};
use lariat::daemon::client::Client;
use lariat::duration;
use lariat::id::SessionId;
use lariat::receipt::Receipt;
use lariat::snapshot::{Living, State};
use std::io::IsTerminal;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use terminal::{Event, Terminal};
use tokio::time::timeout;
use view::{View, Wish};

/// How long the daemon may keep a key from being answered.
const SAY: Duration = Duration::from_millis(300);

/// How long it may take to end a session, graces and engines included.
const CLOSE: Duration = Duration::from_secs(60);

/// Shows every living session as it changes: state, memory, CPU, processes.
///
/// The list can be sorted by any column; below it are the chosen server's processes and its memory
/// over time. `e` ends the chosen server after a question, as its wrapper would end it: the whole tree,
/// with a receipt. `?` shows the keys. No daemon is needed.
///
/// Anywhere but on a terminal, `lariat ps --watch` does the same in lines.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lariat top
  lariat top --sort cpu --every 5s")]
pub(crate) struct Args {
    /// The column to sort by at first
    #[arg(long, value_name = "COLUMN", value_enum, default_value = "memory")]
    sort: sort::Sort,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::some)]
    every: Duration,
    /// Where the books are [default: ~/.local/state/lariat]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Looks and draws until told to leave.
pub(crate) fn run(args: &Args) -> ExitCode {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !is_terminal || !env::terminal_can_draw() {
        let what = "top draws on a terminal, and this is none";
        show::failure(what, None, "`lariat ps --watch` prints the same, --json for programs");
        return ExitCode::FAILURE;
    }
    if let Err(code) = shelf::find(args.state_dir.as_ref()) {
        return code;
    }
    match Terminal::enter() {
        Ok(terminal) => Top::new(args).run(terminal),
        Err(error) => {
            show::failure("cannot draw on this terminal", Some(&error), "try `lariat ps --watch`");
            ExitCode::FAILURE
        }
    }
}

/// What is known while it runs.
struct Top<'a> {
    args: &'a Args,
    books: Option<Books>,
    onlooker: Option<Onlooker>,
    view: View,
    /// Who was asked to leave.
    leaving: Vec<(SessionId, String)>,
    /// Whom a question was asked about, and the daemon's session that it is part of.
    doubted: Option<(SessionId, Option<SessionId>)>,
    /// What the daemon will say of those whom it was asked to end.
    answers: Vec<Receiver<Result<(), String>>>,
}

impl<'a> Top<'a> {
    fn new(args: &'a Args) -> Top<'a> {
        let view = View::new(args.sort, env::speaks_utf8());
        let (leaving, answers, doubted) = (Vec::new(), Vec::new(), None);
        Top { args, books: None, onlooker: None, view, leaving, doubted, answers }
    }

    fn run(mut self, mut terminal: Terminal) -> ExitCode {
        let mut canvas = Canvas::new(Terminal::size(), env::wants_colour());
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                self.look();
                due = Instant::now() + self.args.every;
            }
            self.view.draw(&mut canvas, since_boot());
            if !canvas.show() {
                return ExitCode::FAILURE;
            }
            let wish = match terminal.next(due) {
                Event::Key(key) => self.view.key(key),
                Event::Resized => {
                    canvas = Canvas::new(Terminal::size(), env::wants_colour());
                    Wish::Nothing
                }
                Event::Stop => Wish::Leave,
                Event::Due => Wish::Nothing,
            };
            match wish {
                Wish::Nothing => {}
                Wish::Leave => return ExitCode::SUCCESS,
                Wish::Redraw => canvas.forget(),
                Wish::Suspend => {
                    if terminal.suspend().is_err() {
                        return ExitCode::FAILURE;
                    }
                    canvas = Canvas::new(Terminal::size(), env::wants_colour());
                }
                Wish::Doubt(session) => self.doubt(session),
                Wish::End(session) => self.end(&session),
            }
        }
    }

    fn look(&mut self) {
        if self.onlooker.is_none() {
            // There may be none yet: books are made by the first session.
            self.books =
                shelf::find(self.args.state_dir.as_ref()).ok().and_then(|(_, books)| books);
            self.onlooker = self.books.as_ref().map(|books| Onlooker::new(books).patient());
            if let Some(onlooker) = &mut self.onlooker {
                // Whatever crashed is finished first.
                let _looked = onlooker.sweep_and_look();
            }
        }
        let living = self.onlooker.as_mut().map(Onlooker::look).unwrap_or_default();
        self.view.update(living);
        let gone = |view: &View, session: &SessionId| view.find(session).is_none();
        let (left, leaving) =
            self.leaving.drain(..).partition(|(session, _)| gone(&self.view, session));
        self.leaving = leaving;
        let left: Vec<(SessionId, String)> = left;
        for (session, server) in left {
            let receipt = self.books.as_ref().and_then(|books| books.last_receipt(&session));
            let (tone, text) = match receipt {
                Some(receipt) => told(&receipt),
                None => (Tone::Good, format!("{server} has ended")),
            };
            self.view.say(tone, &text);
        }
        for why in unkept(&mut self.answers) {
            self.view.say(Tone::Bad, &why);
        }
    }

    /// Asks whether somebody is to end, and says what that means.
    fn doubt(&mut self, session: SessionId) {
        let Some(one) = self.view.find(&session) else { return };
        if let Some(why) = cannot_end(one) {
            return self.view.say(Tone::Warn, why);
        }
        let mut question =
            format!("end {} ({})?", one.server, show::count(one.processes, "process"));
        let mut owned = None;
        if let Some(within) = one.within.clone() {
            match self.is_of_daemon(&within) {
                Some(true) => {
                    question = format!("end session {within} of {}, all its servers?", one.server);
                    owned = Some(within);
                }
                Some(false) => {}
                None => return self.view.say(Tone::Warn, "the daemon does not answer; try again"),
            }
        }
        self.doubted = Some((session.clone(), owned));
        self.view.ask(session, &question);
    }

    /// Connects to the daemon, for a thread that may wait.
    fn daemon(&self) -> impl FnOnce() -> Option<UnixStream> + Send + use<> {
        let dir = env::state_dir(self.args.state_dir.clone());
        move || UnixStream::connect(place(&dir?)).ok()
    }

    /// Whether the daemon has this session; `None` if it does not say so soon.
    fn is_of_daemon(&self, session: &SessionId) -> Option<bool> {
        let (id, daemon) = (session.to_string(), self.daemon());
        let (says, heard) = channel();
        std::thread::spawn(move || {
            let look = async |mut client: Client| Ok(timeout(SAY, client.look(&id)).await);
            let looked = daemon().map(|daemon| speak(daemon, look));
            let has = match looked {
                Some(Ok(Err(_late))) => None,
                Some(Ok(Ok(found))) => Some(found.is_ok()),
                Some(Err(_)) | None => Some(false),
            };
            // If nobody listens any more, nobody wants to know.
            let _left = says.send(has);
        });
        heard.recv_timeout(SAY * 2).ok().flatten()
    }

    /// Ends a session: one of the daemon's through the daemon, which would start the server again;
    /// any other as a person would, by a signal to the process that holds it.
    fn end(&mut self, session: &SessionId) {
        let Some(one) = self.view.find(session) else {
            return self.view.say(Tone::Dim, "it has ended already");
        };
        let server = one.server.to_string();
        let doubted = self.doubted.take().filter(|(doubted, _)| doubted == session);
        if let Some(owned) = doubted.and_then(|(_, owned)| owned) {
            let (id, daemon) = (owned.to_string(), self.daemon());
            let (says, heard) = channel();
            std::thread::spawn(move || {
                let close = async |mut client: Client| Ok(timeout(CLOSE, client.close(&id)).await);
                let closed = match daemon().map(|daemon| speak(daemon, close)) {
                    Some(Ok(Ok(closed))) => closed.map(drop).map_err(|error| error.to_string()),
                    Some(Ok(Err(_late))) => Err("the daemon takes too long to end it".into()),
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err("the daemon has gone, and its sessions end with it".into()),
                };
                let _left = says.send(closed);
            });
            self.answers.push(heard);
        } else {
            match self.books.as_ref().map(|books| books.ask_to_end(session)) {
                Some(Ok(true)) => {}
                Some(Err(error)) => {
                    let text = format!("cannot end {server}: {error}");
                    return self.view.say(Tone::Bad, &text);
                }
                Some(Ok(false)) | None => {
                    return self.view.say(Tone::Dim, "it has ended already");
                }
            }
        }
        self.view.say(Tone::Warn, &format!("{server} is asked to leave …"));
        self.leaving.push((session.clone(), server));
    }
}

/// Why what was asked for did not come to be. What has been said is not listened for again.
fn unkept(answers: &mut Vec<Receiver<Result<(), String>>>) -> Vec<String> {
    let mut unkept = Vec::new();
    answers.retain(|answer| match answer.try_recv() {
        Ok(said) => {
            unkept.extend(said.err());
            false
        }
        Err(why) => why == TryRecvError::Empty,
    });
    unkept
}

/// Why somebody cannot be asked to leave.
fn cannot_end(one: &Living) -> Option<&'static str> {
    match one.state {
        State::Ending => Some("it is ending already"),
        State::Survivors => Some("it has ended; `lariat reap` looks after who is left"),
        _ => None,
    }
}

/// What a receipt says, in one line.
fn told(receipt: &Receipt) -> (Tone, String) {
    let processes = show::count(receipt.processes.seen, "process");
    let text = format!("{} ended: {}, {processes}", receipt.server, receipt.reason);
    match receipt.survivors.len() {
        0 => (Tone::Good, format!("{text}, nobody survived")),
        survivors => (Tone::Bad, format!("{text}, {}", show::count(survivors, "survivor"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_heard_once_and_then_forgotten() {
        let (refuses, refused) = channel();
        let (agrees, agreed) = channel();
        let (lost, never) = channel();
        let (_silent, pending) = channel();
        refuses.send(Err("no".to_owned())).unwrap();
        agrees.send(Ok(())).unwrap();
        drop::<std::sync::mpsc::Sender<Result<(), String>>>(lost);
        let mut answers = vec![refused, agreed, never, pending];
        assert_eq!(unkept(&mut answers), ["no"]);
        assert_eq!(answers.len(), 1, "who has answered is still listened to");
        assert!(unkept(&mut answers).is_empty());
    }
}
