# just --list

# Style, unit tests and a sample of the trials; a few minutes.
check:
    ./test quick

# Everything.
test:
    ./test

# The table of trials, or the cells whose names contain a word. LARIAT_TRIALS=full for all of it.
trial *WORDS:
    cargo nextest run -p lariat -p lariat-contain --test trials {{WORDS}}

# Containers on real engines, or the tests whose names contain a word. Needs root and Debian's docker.io.
containers *WORDS:
    cargo nextest run -p lariat --test containers {{WORDS}}

# What Lariat costs; see lariat/benches/run/main.rs for the options.
bench *OPTIONS:
    cargo bench -p lariat --bench run -- {{OPTIONS}}

# What the way through Lariat's socket costs a docker client. Needs root and Debian's docker.io.
bench-docker *OPTIONS:
    cargo bench -p lariat --bench docker -- {{OPTIONS}}

# What a session of the daemon's costs, beside the SDKs of other languages if LARIAT_CLIENTS names them.
bench-sessions *OPTIONS:
    cargo bench -p lariat --bench sessions -- {{OPTIONS}}

# What sharing costs and saves, beside other gateways (`--fetch` installs them).
bench-pool *OPTIONS:
    cargo bench -p lariat --bench pool -- {{OPTIONS}}

# The documentation, private items too.
doc:
    cargo doc --workspace --no-deps --document-private-items --open

# What must hold before a version is tagged. Publishes nothing.
release-check:
    CI=true LARIAT_TRIALS=full ./test
    cargo publish --dry-run --locked --workspace
    cargo build --release --locked

# The book, in target/book. Needs mdbook.
book:
    mdbook build docs

# The Debian and npm packages of a release build, in target/packages. Publishes nothing.
package:
    cargo build --release --locked -p lariat
    packaging/debian/build target/release/lariat target/packages
    packaging/npm/build target/packages "linux-$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')=target/release/lariat"
    if command -v lintian >/dev/null; then lintian --fail-on error,warning target/packages/lariat_*.deb; fi
    if command -v mdbook >/dev/null; then mdbook build docs; fi

# Chance against frames, the mux and HTTP, for as many seconds each.
fuzz seconds="600":
    LARIAT_FUZZ={{seconds}} cargo test -p lariat --all-features --lib -- fuzz lines_are_what nonsense
