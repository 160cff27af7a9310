//! What a misbehaving server says: newline-delimited JSON-RPC, and only what a host must hear to
//! believe that it is a server.

mod scan;

use scan::member;

/// What becomes of one message.
pub(crate) enum Answer {
    /// This line.
    Reply(String),
    /// A call that is never answered.
    Hangs,
    /// Nothing, as to notifications and responses.
    Nothing,
}

/// Answers as the server that plays `verb`.
pub(crate) fn answer(verb: &str, line: &str) -> Answer {
    let (Some(id), Some(method)) = (member(line, "id"), member(line, "method")) else {
        return Answer::Nothing;
    };
    let params = member(line, "params").unwrap_or("{}");
    let result = match method.trim_matches('"') {
        "initialize" => {
            let version = member(params, "protocolVersion").unwrap_or(r#""2025-06-18""#);
            format!(
                r#"{{"protocolVersion":{version},"capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"{verb}","version":"0"}}}}"#
            )
        }
        "ping" => "{}".to_owned(),
        "tools/list" => {
            let tool = |name| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
            format!(r#"{{"tools":[{},{}]}}"#, tool("echo"), tool("hang"))
        }
        "tools/call" if member(params, "name") == Some(r#""hang""#) => return Answer::Hangs,
        "tools/call" => r#"{"content":[{"type":"text","text":"done"}]}"#.to_owned(),
        _ => {
            let error = r#"{"code":-32601,"message":"no such method"}"#;
            return Answer::Reply(format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n"
            ));
        }
    };
    Answer::Reply(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n"))
}
