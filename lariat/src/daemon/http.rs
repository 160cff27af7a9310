//! HTTP on any stream, without knowing what it is for: connections, bodies, answers.

use super::api::Problem;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::rt::ReadBufCursor;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// The body of a request of the API may have this many bytes.
pub(super) const LARGEST_BODY: usize = 4 << 20;

/// A body that is too large is read to its end all the same, up to this many bytes or twice as many as
/// it may have: a client that is still writing does not see an answer.
const LARGEST_PATIENCE: usize = 64 << 20;

/// How long a client may take for the next piece of a body, and how large a piece is: whoever sends a
/// byte now and then would keep room from others for ever.
const NEXT_PIECE: Duration = Duration::from_secs(10);
const PIECE: usize = 64 << 10;

/// Heads and buffers may have this many bytes.
pub(super) const LARGEST_HEAD: usize = 64 << 10;

/// A number of places, of which each is taken by one.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) free: Arc<Semaphore>,
    most: usize,
}

impl Places {
    pub(super) fn new(most: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(most)), most }
    }

    pub(super) fn are_free(&self) -> bool {
        self.free.available_permits() == self.most
    }
}

/// Serves one connection until it ends, or is given up, or everything is stopped; what was asked by
/// then is answered.
pub(super) async fn converse<S, F>(
    stream: S,
    answer: impl Fn(Request<Incoming>) -> F,
    given_up: impl Future<Output = ()>,
    mut stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let answer = answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let mut serving = pin!(builder().serve_connection(Io(stream), service).with_upgrades());
    tokio::select! {
        // Errors are the client's: it left, or speaks something else.
        _done = serving.as_mut() => return,
        () = given_up => return,
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    serving.as_mut().graceful_shutdown();
    let _done = serving.await;
}

/// How requests are read.
pub(super) fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // A client that goes away while it waits takes its request with it; so hyper looks for it.
    builder.half_close(false).max_buf_size(LARGEST_HEAD);
    builder
}

/// Answers the same to whatever is asked, once, if it is asked soon.
pub(super) async fn refuse<S>(stream: S, problem: &Problem, within: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let refuse = service_fn(|_request| async { Ok::<_, Infallible>(self::problem(problem)) });
    let refusing = http1::Builder::new().keep_alive(false).serve_connection(Io(stream), refuse);
    // Somebody who does not ask is not told.
    let _untold = timeout(within, refusing).await;
}

/// A tokio stream as hyper wants it.
#[derive(Debug)]
pub(super) struct Io<S>(pub(super) S);

impl<S: AsyncRead + Unpin> hyper::rt::Read for Io<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // By way of a buffer of our own: filling hyper's in place would need `unsafe`.
        let mut space = [0; 8192];
        let most = to.remaining().min(space.len());
        let mut read = ReadBuf::new(&mut space[..most]);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut read))?;
        to.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for Io<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Content {
    /// All of it.
    Whole(Bytes),
    /// As it comes, until the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Content::Whole(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Content::Stream(lines) => ready!(lines.poll_recv(cx)),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

/// An answer.
pub(super) type Answer = Response<Content>;

/// Reads a whole body, if it is not too large.
pub(super) async fn read(mut body: Incoming, largest: usize) -> Result<Vec<u8>, Problem> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    let (mut due, mut piece) = (Instant::now() + NEXT_PIECE, 0);
    loop {
        let Ok(frame) = timeout_at(due, body.frame()).await else {
            let detail = format!(
                "No more than {} KiB of the body came in {} s. Send it faster.",
                PIECE >> 10,
                NEXT_PIECE.as_secs()
            );
            return Err(Problem::new(408, "slow", "Body too slow", detail));
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| {
            let detail = format!("The body broke off: {error}. Send it again.");
            Problem::new(400, "malformed", "Malformed body", detail)
        })?;
        // Trailers say nothing to us.
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length - piece >= PIECE {
            (due, piece) = (Instant::now() + NEXT_PIECE, length);
        }
        if length <= largest {
            bytes.extend_from_slice(&data);
        } else if length > LARGEST_PATIENCE.max(2 * largest) {
            break;
        }
    }
    if length > largest {
        let detail = format!("A body may have {} MiB; send a smaller one.", largest >> 20);
        return Err(Problem::new(413, "too-large", "Body too large", detail));
    }
    Ok(bytes)
}

/// The same answer, a long one piece by piece: each must be taken in time, and not all of it. What is
/// given along is kept until the last.
pub(super) fn in_pieces<T: Send + 'static>(mut answer: Answer, kept: T) -> Answer {
    let Content::Whole(bytes) = answer.body_mut() else { return answer };
    if bytes.len() <= 4 * PIECE {
        return answer;
    }
    let mut bytes = std::mem::take(bytes);
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        while !bytes.is_empty() {
            let piece = bytes.split_to(PIECE.min(bytes.len()));
            if !matches!(timeout(NEXT_PIECE, sender.send(piece)).await, Ok(Ok(()))) {
                break;
            }
        }
        drop(kept);
    });
    *answer.body_mut() = Content::Stream(pieces);
    answer
}

/// An answer of one JSON value.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => answer(status, "application/json", Content::Whole(bytes.into())),
        Err(error) => {
            let detail = format!("The answer cannot be written: {error}. This is a defect.");
            problem(&Problem::new(500, "defect", "Defect", detail))
        }
    }
}

/// An answer that says why not.
pub(super) fn problem(problem: &Problem) -> Answer {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // Text and numbers can always be written.
    let bytes = serde_json::to_vec(problem).unwrap_or_default();
    answer(status, "application/problem+json", Content::Whole(bytes.into()))
}

/// An answer of any kind.
pub(super) fn answer(status: StatusCode, kind: &'static str, content: Content) -> Answer {
    let mut answer = Response::new(content);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// The same with one more header; without it if the value does not fit into one.
pub(super) fn with(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}
