# The steps of `./test` one by one; `./test` itself needs no just.

# Everything CI checks.
test:
    ./test

# Without lints, documentation and dependencies.
quick:
    ./test quick

# Format the code.
format:
    cargo fmt --all

# Lints as CI sees them.
lints:
    cargo clippy --locked --workspace --all-targets --all-features -- -D warnings

# The model and the engine stay pure.
purity:
    ci/purity

# Licences, banned crates, duplicates.
dependencies:
    ci/dependencies

# The commands that README.md and docs/ show.
docs:
    cargo build --locked -q --bin stead
    ci/docs target/debug/stead

# The book.
book:
    cargo build --locked -q --bin stead
    ci/book target/debug/stead

# The first plan.
first:
    cargo run --release -- plan run examples/first.yaml

# Readers with hostile input, guided by coverage, a minute for each.
fuzz:
    ci/fuzz

# Pushes, kills and cuts for an hour.
soak:
    ci/soak
