//! What is known so far of something that several servers are asked.

use super::merge::Keeping;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;

/// Something that several are asked.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Gather {
    pub(super) method: Box<str>,
    pub(super) line: Vec<u8>,
    pub(super) waiting: BTreeSet<usize>,
    /// Those of whom there is something.
    pub(super) parts: Vec<(usize, Value)>,
    pub(super) items: Vec<(usize, String)>,
    pub(super) keepings: Vec<Keeping>,
    pub(super) pages: usize,
    pub(super) failures: Vec<(usize, String)>,
    pub(super) age: u32,
    /// Of a listen: said that it began; what came too early for that.
    pub(super) begun: bool,
    pub(super) early: Vec<Vec<u8>>,
}

impl Gather {
    pub(super) fn new(method: &str, line: &[u8], whom: BTreeSet<usize>) -> Gather {
        Gather {
            method: method.into(),
            line: line.to_vec(),
            waiting: whom,
            parts: Vec::new(),
            items: Vec::new(),
            keepings: Vec::new(),
            pages: 0,
            failures: Vec::new(),
            age: 0,
            begun: false,
            early: Vec::new(),
        }
    }

    /// What a list is called in its answers.
    pub(super) fn key(&self) -> Option<&'static str> {
        match &*self.method {
            "tools/list" => Some("tools"),
            "prompts/list" => Some("prompts"),
            "resources/list" => Some("resources"),
            "resources/templates/list" => Some("resourceTemplates"),
            _ => None,
        }
    }

    pub(super) fn is_listen(&self) -> bool {
        &*self.method == "subscriptions/listen"
    }
}
