//! What a request came to, in words.

use crate::show;
use lariat::daemon::client::Error;
use std::process::ExitCode;

/// Says why a request came to nothing.
pub(crate) fn explain(what: &str, error: &Error) -> ExitCode {
    match error {
        Error::Refused(problem) if problem.kind.ends_with(":no-session") => {
            show::failure(what, None, "`lariat session list` shows the sessions there are");
        }
        Error::Refused(problem) if problem.kind.ends_with(":no-server") => {
            show::failure(what, None, "it has no such server; `lariat session list` shows them");
        }
        Error::Refused(problem) => {
            show::failure(what, None, &show::plain(&problem.detail));
        }
        Error::Broken(_) => show::failure(what, Some(error), "its sessions have ended with it"),
        Error::Nonsense(_) => {
            show::failure(what, Some(error), "is another version of lariat running there?");
        }
        Error::Stranger(_) => {
            show::failure(what, Some(error), "name your own with --socket PATH");
        }
    }
    ExitCode::FAILURE
}
