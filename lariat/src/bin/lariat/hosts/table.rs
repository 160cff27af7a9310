//! The hosts that are known: where their configs are, and what in them is a server. One row each.
//!
//! Whether a command is a text with arguments beside it, a list, or a map, and whether servers are
//! a map or a list, is seen in the file itself; a row says only where to look.

use super::tree::Format;

/// A host and its files.
pub(crate) struct Host {
    /// What a person types.
    pub(crate) id: &'static str,
    /// What it calls itself.
    pub(crate) name: &'static str,
    /// Programs and scripts by which a running one is known.
    pub(crate) programs: &'static [&'static str],
    pub(crate) files: &'static [Place],
    /// The key of a server's program.
    pub(crate) command: &'static str,
}

/// Where a file may be, and what in it is a server.
pub(crate) struct Place {
    pub(crate) scope: Scope,
    pub(crate) base: Base,
    /// From the base; one `*` stands for any one directory or file.
    pub(crate) path: &'static str,
    pub(crate) format: Format,
    /// The ways from the root to the servers; `*` is any key.
    pub(crate) maps: &'static [&'static [&'static str]],
}

/// Whom a file concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One user on one machine.
    User,
    /// Everybody who works on a project: the file is in its repository.
    Project,
    /// The administrator's.
    System,
}

/// What a path begins with.
#[derive(Clone, Copy)]
pub(crate) enum Base {
    Home,
    /// `XDG_CONFIG_HOME`, or `.config` in the home directory.
    Config,
    /// The directory that a variable names, or else one in the home directory.
    Named(&'static str, &'static str),
    /// The file that a variable names, if it is set.
    File(&'static str),
    Project,
    Root,
}

use Base::{Config, File, Home, Named, Project, Root};
use Format::{Json, Toml, Yaml};

const fn user(
    base: Base,
    path: &'static str,
    format: Format,
    maps: &'static [&'static [&'static str]],
) -> Place {
    Place { scope: Scope::User, base, path, format, maps }
}

const fn project(
    path: &'static str,
    format: Format,
    maps: &'static [&'static [&'static str]],
) -> Place {
    Place { scope: Scope::Project, base: Project, path, format, maps }
}

const fn system(
    path: &'static str,
    format: Format,
    maps: &'static [&'static [&'static str]],
) -> Place {
    Place { scope: Scope::System, base: Root, path, format, maps }
}

/// What most hosts call their servers.
const USUAL: &[&[&str]] = &[&["mcpServers"]];
const CODEX: &[&[&str]] = &[&["mcp_servers"]];
const CODE: &[&[&str]] = &[&["servers"]];
const OPENCODE: &[&[&str]] = &[&["mcp"], &["mcp", "servers"]];

/// A file in which an administrator can allow or deny servers by their command. Wrapped, one that is
/// allowed would be refused, and one that is denied would get through.
pub(crate) struct Policy {
    /// The host's id.
    pub(crate) host: &'static str,
    /// From the root directory.
    pub(crate) path: &'static str,
    pub(crate) format: Format,
    /// The way to such a command; `*` is any key or item.
    pub(crate) way: &'static [&'static str],
}

const fn policy(
    host: &'static str,
    path: &'static str,
    format: Format,
    way: &'static [&'static str],
) -> Policy {
    Policy { host, path, format, way }
}

/// The rules that are known.
pub(crate) const POLICIES: &[Policy] = &[
    policy(
        "codex",
        "etc/codex/requirements.toml",
        Toml,
        &["mcp_servers", "*", "identity", "command"],
    ),
    policy(
        "claude-code",
        "etc/claude-code/managed-settings.json",
        Json,
        &["allowedMcpServers", "*", "serverCommand"],
    ),
    policy(
        "claude-code",
        "etc/claude-code/managed-settings.json",
        Json,
        &["deniedMcpServers", "*", "serverCommand"],
    ),
];

/// Every variable that a row names.
pub(crate) fn variables() -> impl Iterator<Item = &'static str> {
    HOSTS.iter().flat_map(|host| host.files).filter_map(|place| match place.base {
        Named(variable, _) | File(variable) => Some(variable),
        Home | Config | Project | Root => None,
    })
}

/// The rows.
pub(crate) const HOSTS: &[Host] = &[
    Host {
        id: "codex",
        name: "Codex",
        programs: &["codex", "codex-app-server", "@openai/codex"],
        files: &[
            user(Named("CODEX_HOME", ".codex"), "config.toml", Toml, CODEX),
            project(".codex/config.toml", Toml, CODEX),
            system("etc/codex/config.toml", Toml, CODEX),
            system("etc/codex/managed_config.toml", Toml, CODEX),
        ],
        command: "command",
    },
    Host {
        id: "claude-code",
        name: "Claude Code",
        programs: &["claude", "@anthropic-ai/claude-code"],
        files: &[
            user(
                Named("CLAUDE_CONFIG_DIR", ""),
                ".claude.json",
                Json,
                // The second are those of one person in one project.
                &[&["mcpServers"], &["projects", "*", "mcpServers"]],
            ),
            project(".mcp.json", Json, USUAL),
            system("etc/claude-code/managed-mcp.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "claude-desktop",
        name: "Claude Desktop",
        programs: &["claude-desktop", "Claude"],
        files: &[
            user(Config, "Claude/claude_desktop_config.json", Json, USUAL),
            user(Config, "claude/claude_desktop_config.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "cursor",
        name: "Cursor",
        programs: &["cursor", "Cursor", "cursor-agent"],
        files: &[
            user(Home, ".cursor/mcp.json", Json, USUAL),
            project(".cursor/mcp.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "vscode",
        name: "VS Code",
        programs: &["code", "code-insiders", "codium", "code-server"],
        files: &[
            user(Config, "Code/User/mcp.json", Json, CODE),
            user(Config, "Code/User/profiles/*/mcp.json", Json, CODE),
            user(Config, "Code - Insiders/User/mcp.json", Json, CODE),
            user(Config, "Code - Insiders/User/profiles/*/mcp.json", Json, CODE),
            user(Config, "VSCodium/User/mcp.json", Json, CODE),
            user(Home, ".vscode-server/data/User/mcp.json", Json, CODE),
            project(".vscode/mcp.json", Json, CODE),
        ],
        command: "command",
    },
    Host {
        id: "copilot",
        name: "Copilot CLI",
        programs: &["copilot", "@github/copilot"],
        files: &[
            user(Named("COPILOT_HOME", ".copilot"), "mcp-config.json", Json, USUAL),
            project(".mcp.json", Json, USUAL),
            project(".github/mcp.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "windsurf",
        name: "Windsurf",
        programs: &["windsurf", "Windsurf"],
        files: &[
            user(Home, ".codeium/windsurf/mcp_config.json", Json, USUAL),
            user(Home, ".codeium/mcp_config.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "zed",
        name: "Zed",
        programs: &["zed", "zeditor", "zed-editor"],
        files: &[
            user(Config, "zed/settings.json", Json, &[&["context_servers"]]),
            user(
                Home,
                ".var/app/dev.zed.Zed/config/zed/settings.json",
                Json,
                &[&["context_servers"]],
            ),
            project(".zed/settings.json", Json, &[&["context_servers"]]),
        ],
        command: "command",
    },
    Host {
        id: "gemini",
        name: "Gemini CLI",
        programs: &["gemini", "@google/gemini-cli"],
        files: &[
            user(Named("GEMINI_CLI_HOME", ""), ".gemini/settings.json", Json, USUAL),
            project(".gemini/settings.json", Json, USUAL),
            system("etc/gemini-cli/settings.json", Json, USUAL),
            system("etc/gemini-cli/system-defaults.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "openclaw",
        name: "OpenClaw",
        programs: &["openclaw", "openclaw-gateway"],
        files: &[
            user(File("OPENCLAW_CONFIG_PATH"), "", Json, &[&["mcp", "servers"]]),
            user(
                Named("OPENCLAW_STATE_DIR", ".openclaw"),
                "openclaw.json",
                Json,
                &[&["mcp", "servers"]],
            ),
        ],
        command: "command",
    },
    Host {
        id: "opencode",
        name: "opencode",
        programs: &["opencode", "opencode-ai"],
        files: &[
            user(File("OPENCODE_CONFIG"), "", Json, OPENCODE),
            user(Config, "opencode/opencode.json", Json, OPENCODE),
            user(Config, "opencode/opencode.jsonc", Json, OPENCODE),
            user(Config, "opencode/config.json", Json, OPENCODE),
            project("opencode.json", Json, OPENCODE),
            project("opencode.jsonc", Json, OPENCODE),
            project(".opencode/opencode.json", Json, OPENCODE),
            project(".opencode/opencode.jsonc", Json, OPENCODE),
        ],
        command: "command",
    },
    Host {
        id: "goose",
        name: "goose",
        programs: &["goose", "goosed"],
        files: &[user(Config, "goose/config.yaml", Yaml, &[&["extensions"]])],
        command: "cmd",
    },
    Host {
        id: "cline",
        name: "Cline",
        programs: &["cline"],
        files: &[
            user(
                Config,
                "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                Json,
                USUAL,
            ),
            user(
                Config,
                "Code - Insiders/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                Json,
                USUAL,
            ),
            user(
                Config,
                "Cursor/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                Json,
                USUAL,
            ),
            user(Home, ".cline/data/settings/cline_mcp_settings.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "roo",
        name: "Roo Code",
        programs: &["roo"],
        files: &[
            user(
                Config,
                "Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
                Json,
                USUAL,
            ),
            user(
                Config,
                "Code - Insiders/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
                Json,
                USUAL,
            ),
            user(
                Config,
                "Cursor/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
                Json,
                USUAL,
            ),
            project(".roo/mcp.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "kiro",
        name: "Kiro",
        programs: &["kiro", "kiro-cli"],
        files: &[
            user(Home, ".kiro/settings/mcp.json", Json, USUAL),
            project(".kiro/settings/mcp.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "lmstudio",
        name: "LM Studio",
        programs: &["lm-studio", "lmstudio", "lms"],
        files: &[
            user(Home, ".lmstudio/mcp.json", Json, USUAL),
            user(Home, ".cache/lm-studio/mcp.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "continue",
        name: "Continue",
        programs: &["cn", "@continuedev/cli"],
        files: &[
            user(Home, ".continue/config.yaml", Yaml, USUAL),
            user(Home, ".continue/mcpServers/*.yaml", Yaml, USUAL),
            user(Home, ".continue/mcpServers/*.yml", Yaml, USUAL),
            user(Home, ".continue/mcpServers/*.json", Json, USUAL),
            project(".continue/mcpServers/*.yaml", Yaml, USUAL),
            project(".continue/mcpServers/*.yml", Yaml, USUAL),
            project(".continue/mcpServers/*.json", Json, USUAL),
        ],
        command: "command",
    },
    Host {
        id: "amp",
        name: "Amp",
        programs: &["amp", "@sourcegraph/amp"],
        files: &[
            user(Config, "amp/settings.json", Json, &[&["amp.mcpServers"]]),
            user(Config, "amp/settings.jsonc", Json, &[&["amp.mcpServers"]]),
            project(".amp/settings.json", Json, &[&["amp.mcpServers"]]),
            project(".amp/settings.jsonc", Json, &[&["amp.mcpServers"]]),
        ],
        command: "command",
    },
    Host {
        id: "crush",
        name: "Crush",
        programs: &["crush", "@charmland/crush"],
        files: &[
            user(Config, "crush/crush.json", Json, &[&["mcp"]]),
            project("crush.json", Json, &[&["mcp"]]),
            project(".crush.json", Json, &[&["mcp"]]),
        ],
        command: "command",
    },
];
