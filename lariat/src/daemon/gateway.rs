//! MCP by HTTP: every server of the daemon's file at a path of its own, and all of them at one.
mod headers;
mod streams;
