//! One request after the other on a stream, until it ends or everything rests.
//!
//! A stream rests between two requests, when the answer to the last is written whole; or in the middle of an
//! answer that has no end, when all of it that there is so far is written. What has been read of the next
//! request by then is kept, and read anew when it goes on: in this program or in the one that this process
//! becomes.

use super::gateway::Spring;
use super::http::{self, Answer, Content};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Method, Request, Version};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// A stream that nothing is done with for the moment.
#[derive(Debug)]
pub(super) struct Idle<S> {
    pub(super) stream: S,
    /// What was read and not answered.
    pub(super) unread: Bytes,
    /// Something has been asked already.
    pub(super) heard: bool,
}

/// How a conversation has ended.
pub(super) enum End<S> {
    Over,
    /// It rests between two requests.
    Quiet(Idle<S>),
    /// It rests in the middle of an answer that has no end.
    Midway(Idle<S>, Midway),
}

/// The rest of such an answer.
#[derive(Debug)]
pub(super) struct Midway {
    /// Each piece has its length before it.
    pub(super) chunked: bool,
    /// Where it comes from, if not from what happens to sessions.
    pub(super) spring: Option<Arc<Spring>>,
}

/// What else can happen to a conversation.
pub(super) struct Around<C, G, T> {
    /// Everything is to rest.
    pub(super) called: C,
    /// Nobody waits for it any more.
    pub(super) given_up: G,
    /// True if whoever is told what happens has been told all of it.
    pub(super) is_told: T,
    pub(super) stopped: watch::Receiver<bool>,
}

/// Answers until the stream ends, or until it rests.
pub(super) async fn converse<S, F>(
    Idle { stream, unread, heard }: Idle<S>,
    answer: impl Fn(Request<Incoming>) -> F,
    around: Around<impl Future<Output = ()>, impl Future<Output = ()>, impl Fn() -> bool>,
) -> End<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Answer>,
{
    let flow = Arc::new(Flow::default());
    flow.heard.store(heard, Ordering::Relaxed);
    let service = service_fn(|request: Request<Incoming>| {
        let busy = flow.begin(request.version());
        // Where events answer a POST they come after all of it was read. What else a request may have for
        // a body is read by nobody, and nothing must be taken for the next request that is still of this one.
        let is_read = request.body().is_end_stream() || request.method() == Method::POST;
        let answer = answer(request);
        async move {
            let mut answer = answer.await;
            let is_long = is_read && matches!(answer.body(), Content::Stream(_));
            busy.0.is_long.store(is_long, Ordering::Relaxed);
            *busy.0.spring() = answer.extensions_mut().remove();
            Ok::<_, Infallible>(answer.map(|content| Counted { content, _busy: busy }))
        }
    });
    let io = http::Io(Stream { unread, stream, flow: flow.clone() });
    let mut serving = http::builder().serve_connection(io, service).with_upgrades();
    let Around { called, given_up, is_told, mut stopped } = around;
    let rests = {
        let mut called = pin!(called);
        let mut is_called = false;
        let spoken = poll_fn(|cx| {
            flow.unwritten.store(true, Ordering::Relaxed);
            let was_answering = !flow.answers_nobody();
            // Errors are the client's: it left, or speaks something else.
            if Pin::new(&mut serving).poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            is_called = is_called || called.as_mut().poll(cx).is_ready();
            if !is_called {
                return Poll::Pending;
            }
            if was_answering && flow.answers_nobody() {
                // What was not read of a request that was answered all the same is passed over the next time.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // A stream is flushed only when nothing is left to be written to it.
            let is_written = !flow.unwritten.load(Ordering::Relaxed);
            match flow.is_quiet(cx, &is_told) && is_written {
                true => Poll::Ready(true),
                false => Poll::Pending,
            }
        });
        tokio::select! {
            rests = spoken => Some(rests),
            () = given_up => Some(false),
            _ = stopped.wait_for(|stopped| *stopped) => None,
        }
    };
    match rests {
        Some(true) => {}
        Some(false) => return End::Over,
        None => {
            // What was asked by then is answered.
            Pin::new(&mut serving).graceful_shutdown();
            let _done = serving.await;
            return End::Over;
        }
    }
    // Before the answer is dropped with the rest.
    let (is_midway, spring) = (flow.is_midway(), flow.spring().take());
    // The line is not that of a client that speaks MCP by now: that would have been the end of it.
    let Some(parts) = serving.into_parts() else { return End::Over };
    let Stream { unread, stream, .. } = parts.io.0;
    let unread = match parts.read_buf.is_empty() {
        true => unread,
        false => [&parts.read_buf[..], &unread[..]].concat().into(),
    };
    let idle = Idle { stream, unread, heard: flow.heard.load(Ordering::Relaxed) };
    if is_midway {
        let chunked = !flow.is_old.load(Ordering::Relaxed);
        return End::Midway(idle, Midway { chunked, spring });
    }
    End::Quiet(idle)
}

/// Adds a piece of such an answer to what is to be written.
pub(super) fn add(unwritten: &mut Vec<u8>, piece: &[u8], chunked: bool) {
    if chunked {
        unwritten.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
    }
    unwritten.extend_from_slice(piece);
    if chunked {
        unwritten.extend_from_slice(b"\r\n");
    }
}

/// What goes on in a connection.
#[derive(Debug, Default)]
struct Flow {
    /// Something has been asked already.
    heard: AtomicBool,
    /// Requests whose answers are not written yet.
    busy: AtomicUsize,
    /// The last answer has no end.
    is_long: AtomicBool,
    /// Where it comes from.
    spring: Mutex<Option<Arc<Spring>>>,
    /// The last request is one of HTTP/1.0.
    is_old: AtomicBool,
    /// Something may be left to be written.
    unwritten: AtomicBool,
}

impl Flow {
    fn begin(self: &Arc<Flow>, version: Version) -> Busy {
        self.heard.store(true, Ordering::Relaxed);
        self.is_old.store(version == Version::HTTP_10, Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    fn spring(&self) -> MutexGuard<'_, Option<Arc<Spring>>> {
        // Nothing in here can be left half done by a panic.
        self.spring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody is being answered, or has been told all there is so far. If not, whoever waits is
    /// woken when that may have changed.
    fn is_quiet(&self, cx: &Context<'_>, is_told: &impl Fn() -> bool) -> bool {
        let is_told = || match &*self.spring() {
            Some(spring) => spring.is_still(cx.waker()),
            None => is_told(),
        };
        self.answers_nobody() || self.is_midway() && is_told()
    }

    fn answers_nobody(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    fn is_midway(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 1 && self.is_long.load(Ordering::Relaxed)
    }
}

/// A request, until its answer is on its way.
struct Busy(Arc<Flow>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.is_long.store(false, Ordering::Relaxed);
        self.0.spring().take();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer, which counts until it is given out.
struct Counted {
    content: Content,
    _busy: Busy,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.content).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}

/// A connection's stream, behind what was read of it before.
#[derive(Debug)]
pub(super) struct Stream<S> {
    unread: Bytes,
    stream: S,
    flow: Arc<Flow>,
}

impl<S> Stream<S> {
    /// The stream itself, and what is to be read before it.
    pub(super) fn into_parts(self) -> (S, Bytes) {
        (self.stream, self.unread)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, to);
        }
        let most = to.remaining().min(self.unread.len());
        to.put_slice(&self.unread.split_to(most));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.flow.unwritten.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flow.unwritten.store(false, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
