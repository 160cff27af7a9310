//! Reaching the engine: one byte stream, whatever lies between.
//!
//! Each connection is made afresh, and what it needs is read from its files each time, so renewed
//! certificates count at once. A stream can be closed for writing while it is still read: that is
//! how a container learns that its standard input has ended.

use super::endpoint::Endpoint;
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};

/// How long an engine may take to answer, the TLS handshake included.
const CONNECT: Duration = Duration::from_secs(10);

/// An idle connection is probed this often: a network that went away says nothing by itself.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// How long ssh may take to exit after its output has ended.
const GOODBYE: Duration = Duration::from_secs(3);

/// A connection to an engine.
#[derive(Debug)]
pub enum Stream {
    /// To a socket of this machine.
    Unix(UnixStream),
    /// Over the network, in the clear.
    Tcp(TcpStream),
    /// Over the network, behind TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// Through the docker command of another machine.
    Ssh(Box<Ssh>),
}

impl Stream {
    /// True if it is a socket and nothing else.
    pub fn is_plain(&self) -> bool {
        matches!(self, Stream::Unix(_) | Stream::Tcp(_))
    }

    /// The socket itself, if it is one, made to block.
    pub fn into_socket(self) -> io::Result<OwnedFd> {
        match self {
            Stream::Unix(stream) => {
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                Ok(stream.into())
            }
            Stream::Tcp(stream) => {
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                Ok(stream.into())
            }
            Stream::Tls(_) | Stream::Ssh(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Connects. An ssh connection is handed out before it stands: its first read tells.
pub async fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
    match timeout(CONNECT, reach(endpoint)).await {
        Ok(reached) => reached,
        Err(_) => {
            let what = format!("no answer from {endpoint} within {} s", CONNECT.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        }
    }
}

async fn reach(endpoint: &Endpoint) -> io::Result<Stream> {
    match endpoint {
        Endpoint::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
        Endpoint::Tcp(address) => tcp(address).await.map(Stream::Tcp),
        Endpoint::Tls { address, name, ca, cert, key, verify } => {
            let pair = cert.as_deref().zip(key.as_deref());
            let config = tls_config(ca.as_deref(), pair, *verify)?;
            let name = ServerName::try_from(name.clone()).map_err(invalid)?;
            let stream = tcp(address).await?;
            let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
            Ok(Stream::Tls(Box::new(stream)))
        }
        Endpoint::Ssh { user, host, port, path } => {
            let args = ssh_arguments(user.as_deref(), host, *port, path.as_deref());
            let ssh = Ssh::start(Command::new("ssh").args(args), endpoint.to_string())?;
            Ok(Stream::Ssh(Box::new(ssh)))
        }
    }
}

async fn tcp(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
    Ok(stream)
}

fn tls_config(
    ca: Option<&Path>,
    pair: Option<(&Path, &Path)>,
    verify: bool,
) -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let builder = match ca {
        _ if !verify => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        }
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            let (usable, _) = roots.add_parsable_certificates(certificates(ca)?);
            if usable == 0 {
                return Err(invalid(format!("{} holds no usable certificate", ca.display())));
            }
            builder.with_root_certificates(roots)
        }
        None => {
            let why = "cannot check the engine's certificate: there is no ca.pem, and the \
                       authorities of this system are not consulted; put it beside cert.pem";
            return Err(invalid(why));
        }
    };
    let Some((cert, key)) = pair else {
        return Ok(builder.with_no_client_auth());
    };
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, e))?;
    let pair = |e| invalid(format!("cannot use {} with {}: {e}", cert.display(), key.display()));
    builder.with_client_auth_cert(certificates(cert)?, secret).map_err(pair)
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|e| unreadable(path, e))
}

fn unreadable(path: &Path, e: impl fmt::Display) -> io::Error {
    invalid(format!("cannot read {}: {e}", path.display()))
}

fn invalid(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, e)
}

/// Takes any certificate, as the docker command does with `--tls` and `SkipTLSVerify`: the user
/// wants encryption without proof. Signatures are not checked either: whoever could sit in between
/// would have a key of its own to sign with.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What ssh is started with: the docker command's words, and `BatchMode`, because a question would
/// appear on the terminal of a host that draws its own screen there, and wait for ever.
fn ssh_arguments(
    user: Option<&str>,
    host: &str,
    port: Option<u16>,
    path: Option<&str>,
) -> Vec<String> {
    let mut args = Vec::new();
    if let Some(user) = user {
        args.extend(["-l".into(), quoted(user)]);
    }
    if let Some(port) = port {
        args.extend(["-p".into(), port.to_string()]);
    }
    args.extend(["-o", "ConnectTimeout=30", "-o", "BatchMode=yes", "-T", "--"].map(String::from));
    args.push(quoted(host));
    // One word: a shell on the other side takes it apart.
    args.push(match path {
        Some(path) => {
            format!("docker {} system dial-stdio", quoted(&format!("--host=unix://{path}")))
        }
        None => "docker system dial-stdio".into(),
    });
    args
}

/// Quotes for a shell if need be. Names of users and machines too: a `ProxyCommand` in ssh's
/// configuration hands them to one.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// An ssh that carries the stream. It is killed with this; and if we die without a drop, the end
/// of its input ends it.
pub struct Ssh {
    /// `None` once it is closed for writing.
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    end: End,
}

enum End {
    Running(Child, String),
    Ending(Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>),
    Over,
}

impl Ssh {
    fn start(command: &mut Command, endpoint: String) -> io::Result<Ssh> {
        // A group of its own: what the terminal sends to ours is not for it.
        let command = command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("cannot start ssh: {e}")))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Ssh { stdin: Some(stdin), stdout, end: End::Running(child, endpoint) })
    }
}

/// Turns a failed exit into an error: otherwise a refused login is an engine that says nothing.
async fn ended(mut child: Child, endpoint: String) -> io::Result<()> {
    match timeout(GOODBYE, child.wait()).await {
        Ok(Ok(status)) if !status.success() => Err(io::Error::other(format!(
            "ssh to {endpoint} ended with {status}; see if `docker -H {endpoint} version` works"
        ))),
        Ok(waited) => waited.map(drop),
        Err(_) => Ok(()),
    }
}

impl fmt::Debug for Ssh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ssh").field("stdin", &self.stdin).finish_non_exhaustive()
    }
}

impl AsyncRead for Ssh {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stdout).poll_read(cx, buf))?;
        if buf.filled().len() > before || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        this.end = match std::mem::replace(&mut this.end, End::Over) {
            End::Running(child, endpoint) => End::Ending(Box::pin(ended(child, endpoint))),
            end => end,
        };
        let End::Ending(ending) = &mut this.end else {
            return Poll::Ready(Ok(()));
        };
        let result = ready!(ending.as_mut().poll(cx));
        this.end = End::Over;
        Poll::Ready(result)
    }
}

impl AsyncWrite for Ssh {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stdin {
            Some(stdin) => Pin::new(stdin).poll_write(cx, buf),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stdin {
            Some(stdin) => Pin::new(stdin).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stdin = None;
        Poll::Ready(Ok(()))
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl Stream {
    fn inner(&mut self) -> Pin<&mut dyn Duplex> {
        match self {
            Stream::Unix(stream) => Pin::new(stream),
            Stream::Tcp(stream) => Pin::new(stream),
            Stream::Tls(stream) => Pin::new(stream.as_mut()),
            Stream::Ssh(stream) => Pin::new(stream.as_mut()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().inner().poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().inner().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner().poll_flush(cx)
    }

    /// Ends what we write. The other direction stays open.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UnixListener};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;

    /// A directory that goes with the test.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let name = format!("lariat-connect-{}-{name}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _left_over = fs::remove_dir_all(&self.0);
        }
    }

    /// Answers only when the other side has finished, so half-closing is what is tried.
    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await?;
        stream.write_all(format!("heard {heard}").as_bytes()).await?;
        stream.shutdown().await
    }

    async fn ask(mut stream: Stream) -> io::Result<String> {
        stream.write_all(b"ping").await?;
        stream.shutdown().await?;
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await?;
        Ok(heard)
    }

    async fn ask_at(endpoint: &Endpoint) -> io::Result<String> {
        ask(connect(endpoint).await?).await
    }

    #[tokio::test]
    async fn sockets_half_close() {
        let dir = Dir::new("unix");
        let path = dir.0.join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = async { answer(listener.accept().await.unwrap().0).await.unwrap() };
        let endpoint = Endpoint::Unix(path);
        let ((), heard) = tokio::join!(server, ask_at(&endpoint));
        assert_eq!(heard.unwrap(), "heard ping");

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
        let server = async { answer(listener.accept().await.unwrap().0).await.unwrap() };
        let ((), heard) = tokio::join!(server, ask_at(&endpoint));
        assert_eq!(heard.unwrap(), "heard ping");
        let absent = connect(&Endpoint::Unix(dir.0.join("absent"))).await;
        assert_eq!(absent.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// Two authorities, a server's pair, and a client's key in each of the three forms.
    fn certificates_in(dir: &Path) -> bool {
        let script = r#"
            printf '[req]\ndistinguished_name=dn\n[dn]\n' > conf
            authority() { openssl req -config conf -subj /CN=$1 -nodes -newkey ec \
                -pkeyopt ec_paramgen_curve:P-256 -keyout $1.key -x509 -days 2 \
                -addext basicConstraints=critical,CA:TRUE -out $1.pem; }
            sign() { openssl req -config conf -new -key $1.key -subj /CN=$1 -out $1.csr
                printf "$2\n" > $1.ext
                openssl x509 -req -in $1.csr -CA ours.pem -CAkey ours.key -set_serial $3 \
                    -days 2 -extfile $1.ext -out $1.pem; }
            set -e
            authority ours
            authority other
            openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out server.key
            sign server 'subjectAltName=IP:127.0.0.1,DNS:localhost' 1
            openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out pkcs8.key
            openssl pkey -traditional -in pkcs8.key -out sec1.key
            openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa.key
            openssl pkey -traditional -in rsa.key -out pkcs1.key
            sign pkcs8 extendedKeyUsage=clientAuth 2
            sign sec1 extendedKeyUsage=clientAuth 3
            sign pkcs1 extendedKeyUsage=clientAuth 4
        "#;
        let mut shell = std::process::Command::new("sh");
        let made = shell.args(["-c", script]).current_dir(dir).output().unwrap();
        let there = std::process::Command::new("openssl").arg("version").output().is_ok();
        assert!(!there || made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        there
    }

    /// A server that wants a client's certificate if `mutual`.
    async fn serve(dir: &Path, listener: &TcpListener, mutual: bool) -> io::Result<()> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if mutual {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(&dir.join("ours.pem")).unwrap());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let chain = certificates(&dir.join("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).unwrap();
        let config = builder.with_single_cert(chain, key).unwrap();
        let (stream, _) = listener.accept().await?;
        answer(TlsAcceptor::from(Arc::new(config)).accept(stream).await?).await
    }

    #[tokio::test]
    async fn tls_proves_who_is_there() {
        let dir = Dir::new("tls");
        if !certificates_in(&dir.0) {
            eprintln!("skipped tls_proves_who_is_there: there is no openssl");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let file = |name: &str| Some(dir.0.join(name)).filter(|_| !name.is_empty());
        // The authority, the client's pair, the name, whether it is checked, whether the server
        // checks too, and how it ends.
        for (ca, pair, name, verify, mutual, end) in [
            ("ours.pem", "", "127.0.0.1", true, false, "heard ping"),
            ("ours.pem", "", "localhost", true, false, "heard ping"),
            ("ours.pem", "", "elsewhere", true, false, "not valid for name"),
            ("other.pem", "", "localhost", true, false, "UnknownIssuer"),
            ("other.pem", "", "elsewhere", false, false, "heard ping"),
            ("", "", "localhost", false, false, "heard ping"),
            ("", "pkcs8", "localhost", false, true, "heard ping"),
            ("ours.pem", "pkcs8", "localhost", true, true, "heard ping"),
            ("ours.pem", "sec1", "localhost", true, true, "heard ping"),
            ("ours.pem", "pkcs1", "localhost", true, true, "heard ping"),
            // The server's refusal may overtake its reason.
            ("ours.pem", "", "localhost", true, true, "refused"),
        ] {
            let row = format!("{ca:?} {pair:?} {name} {verify} {mutual}");
            let (cert, key) = match pair {
                "" => (None, None),
                pair => (file(&format!("{pair}.pem")), file(&format!("{pair}.key"))),
            };
            let (address, name) = (address.clone(), name.into());
            let endpoint = Endpoint::Tls { address, name, ca: file(ca), cert, key, verify };
            let server = serve(&dir.0, &listener, mutual);
            let (_, heard) = tokio::join!(server, ask_at(&endpoint));
            let heard = heard.unwrap_or_else(|e| format!("refused: {e}"));
            assert!(heard.contains(end), "{row}: {heard}");
        }
        let why = |ca: &str, pair: Option<(&str, &str)>| {
            let pair = pair.map(|(cert, key)| (dir.0.join(cert), dir.0.join(key)));
            let pair = pair.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
            tls_config(file(ca).as_deref(), pair, true).unwrap_err().to_string()
        };
        assert!(why("", None).contains("no ca.pem"));
        assert!(why("absent.pem", None).contains("absent.pem"));
        assert!(why("conf", None).contains("no usable certificate"));
        assert!(why("ours.pem", Some(("sec1.pem", "conf"))).contains("conf"));
        assert!(why("ours.pem", Some(("sec1.pem", "pkcs1.key"))).contains("pkcs1.key"));
    }

    #[test]
    fn ssh_is_told_what_docker_tells_it() {
        let plain = ssh_arguments(None, "far", None, None);
        let options = ["-o", "ConnectTimeout=30", "-o", "BatchMode=yes", "-T", "--"];
        assert_eq!(plain, [&options[..], &["far", "docker system dial-stdio"]].concat());
        let full = ssh_arguments(Some("me"), "-far", Some(22), Some("/run/x.sock"));
        let there = ["-far", "docker '--host=unix:///run/x.sock' system dial-stdio"];
        assert_eq!(full, [&["-l", "me", "-p", "22"], &options[..], &there].concat());
        assert_eq!(quoted("$(x)'s"), r"'$(x)'\''s'");
    }

    #[tokio::test]
    async fn a_command_carries_a_stream() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            let ssh = Ssh::start(command.args(["-c", script]), "ssh://far".into());
            Stream::Ssh(Box::new(ssh.unwrap()))
        };
        let heard = ask(start("x=$(cat); echo heard $x")).await;
        assert_eq!(heard.unwrap(), "heard ping\n");
        let mut refused = start("exit 255");
        let why = refused.read(&mut [0; 8]).await.unwrap_err().to_string();
        assert!(why.contains("ssh://far") && why.contains("255"), "{why}");
        assert_eq!(refused.read(&mut [0; 8]).await.unwrap(), 0, "said once");
    }
}
