//! A server that runs in an image: the command that makes a container of it.
//!
//! The container is started through the docker command, which finds the session's own socket, so it
//! carries the session's labels and ends as every other container of the session does.

use crate::spec::ServerSpec;

/// The program and arguments that run a server, in its image if it has one.
pub(crate) fn command(spec: &ServerSpec) -> (String, Vec<String>) {
    let Some(image) = &spec.image else {
        return (spec.command.clone().unwrap_or_default(), spec.args.clone());
    };
    let mut args: Vec<String> = ["run", "--interactive", "--rm"].map(String::from).to_vec();
    for (name, value) in &spec.env {
        // A value that is not named here is taken from the docker command's environment, where
        // nobody else sees it. That environment has a search path of its own.
        let word = if name == PATH { format!("{PATH}={value}") } else { name.clone() };
        args.extend(["--env".into(), word]);
    }
    if let Some(cwd) = &spec.cwd {
        args.extend(["--workdir".into(), cwd.to_string_lossy().into_owned()]);
    }
    args.push(image.clone());
    args.extend(spec.command.clone());
    args.extend(spec.args.iter().cloned());
    ("docker".into(), args)
}

/// The variables that the program itself gets.
pub(crate) fn environment(spec: &ServerSpec) -> impl Iterator<Item = (&String, &String)> {
    let in_image = spec.image.is_some();
    spec.env.iter().filter(move |(name, _)| !in_image || *name != PATH)
}

const PATH: &str = "PATH";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_out_of_the_arguments() {
        let mut spec = ServerSpec::new("serve").args(["--fast"]).env("TOKEN", "s3cret");
        spec.image = Some("time:1".into());
        spec.cwd = Some("/srv".into());
        let (program, args) = command(&spec);
        assert_eq!(program, "docker");
        let expected =
            "run --interactive --rm --env TOKEN --workdir /srv time:1 serve --fast".split(' ');
        assert_eq!(args, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_search_path_for_the_image_is_not_one_for_docker() {
        let mut spec = ServerSpec::new("serve").env("PATH", "/app/bin");
        assert_eq!(environment(&spec).count(), 1);
        spec.image = Some("x".into());
        assert_eq!(environment(&spec).count(), 0);
        assert!(command(&spec).1.contains(&"PATH=/app/bin".into()));
    }
}
