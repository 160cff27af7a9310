//! What a conversation costs while nobody speaks.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

#[tokio::test]
async fn an_idle_connection_is_small() {
    const MANY: usize = 150;
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let rules = Rules { tools: vec!["*".into()], capabilities: Map::new() };
    // Sockets, because their buffers are the kernel's.
    let talk = || async {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (output, input) = near.into_split();
        let (connection, driver) = Connection::open(input, output, rules.clone());
        let driver = tokio::spawn(driver);
        let answer = async {
            let mut heard = [0; 1000];
            assert_ne!(far.read(&mut heard).await.unwrap(), 0);
            let answer = json!({ "id": 1, "result": "x".repeat(100 << 10) }).to_string() + "\n";
            far.write_all(answer.as_bytes()).await.unwrap();
        };
        tokio::join!(connection.request("x", None), answer).0.unwrap();
        (connection, far, driver)
    };
    let mut all = Vec::new();
    for _ in 0..20 {
        all.push(talk().await);
    }
    let before = resident();
    for _ in 0..MANY {
        all.push(talk().await);
    }
    let each = (resident() - before) / MANY;
    assert!(each < 20 << 10, "{each} bytes");
}
