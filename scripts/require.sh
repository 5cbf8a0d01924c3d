#!/usr/bin/env bash
# Makes sure that the named tools are there and recent enough:  scripts/require.sh rust java …
# As root on Debian or Ubuntu, missing packages are installed; otherwise they are listed and the script fails.
set -u

# at_least WANTED HAVE: compares dotted versions.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# install_programs PACKAGE PROGRAM…: takes programs out of a Debian package, which would also start a service.
install_programs() {
    local package=$1 folder failed
    shift
    folder=$(mktemp -d) || return 1
    (cd "$folder" && apt-get download -qq -o APT::Sandbox::User=root "$package") &&
        dpkg-deb -x "$folder/$package"_*.deb "$folder/unpacked" &&
        install -D -m 755 -t /usr/local/bin "${@/#/$folder/unpacked/usr/bin/}"
    failed=$?
    rm -rf "$folder"
    return $failed
}

version_of() { "$@" 2>&1 | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1; }

have_python() {
    local python=${PYTHON:-python3}
    command -v "$python" >/dev/null && "$python" - <<'P' 2>/dev/null
import sys
if sys.version_info < (3, 11):
    sys.exit(1)
import ensurepip, venv
P
}
python_packages="python3 python3-venv"
python_advice="Python 3.11 or newer with its venv module (or name one: make PYTHON=python3.12 …)"

have_rust() {
    command -v cargo >/dev/null && command -v rustc >/dev/null && command -v cc >/dev/null &&
        at_least 1.85 "$(version_of rustc --version)" && at_least 1.85 "$(version_of cargo --version)"
}
rust_packages="cargo-web rustc-web gcc libc6-dev"
rust_advice="Rust 1.85 or newer (rustc and cargo) and a C linker (cc)"

have_rust_lint() { cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1; }
rust_lint_packages="rust-web-clippy rustfmt-web"
rust_lint_advice="clippy and rustfmt for your Rust (rustup component add clippy rustfmt)"

have_java() { command -v javac >/dev/null && at_least 17 "$(version_of javac -version)"; }
java_packages="openjdk-17-jdk-headless"
java_advice="a JDK, version 17 or newer (javac on the PATH)"

have_maven() { command -v mvn >/dev/null; }
maven_packages="maven"
maven_advice="Maven (mvn on the PATH)"

have_go() { command -v go >/dev/null; }
go_packages="golang-go"
go_advice="Go (go on the PATH)"

# Only the programs: the full package would start a server of its own.
have_mariadb() {
    local PATH=$PATH:/usr/sbin
    command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null
}
mariadb_packages="mariadb-server-core mariadb-client-core"
mariadb_advice="MariaDB 10.5 or newer (mariadbd and mariadb-install-db)"

# Debian keeps its programs out of the PATH.
have_postgresql() {
    command -v psql >/dev/null && PATH=$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' :) command -v initdb >/dev/null
}
postgresql_packages="postgresql"
postgresql_advice="PostgreSQL 13 or newer (psql, initdb and postgres)"

# Only the program: the package would start a server of its own, and again at every boot. Before 3.4 the
# gateway has another path.
have_etcd() { command -v etcd >/dev/null && at_least 3.4 "$(version_of etcd --version)"; }
etcd_packages="etcd-server"
etcd_advice="etcd 3.4 or newer (etcd on the PATH; its service is not needed and may be disabled)"
install_etcd() { install_programs etcd-server etcd; }

# Only the programs, for the same reason.
have_prometheus() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null && at_least 2.40 "$(version_of prometheus --version)"
}
prometheus_packages="prometheus"
prometheus_advice="Prometheus 2.40 or newer (prometheus and promtool on the PATH; its service is not needed)"
install_prometheus() { install_programs prometheus prometheus promtool; }

# Debian's Chromium, which Playwright drives, and a font with Chinese characters.
have_browser() {
    { command -v chromium-headless-shell || command -v chromium; } >/dev/null && fc-list :lang=zh 2>/dev/null | grep -q .
}
browser_packages="chromium-headless-shell fontconfig fonts-wqy-microhei"
browser_advice="Chromium (chromium-headless-shell or chromium on the PATH) and a font with Chinese characters, for the tests of the console"

# systemd-analyze checks the units; the tests run a systemd of their own in a container.
have_systemd() { command -v systemd-analyze >/dev/null && command -v systemd-nspawn >/dev/null; }
systemd_packages="systemd systemd-container"
systemd_advice="systemd and systemd-nspawn, to check and start the units in deploy/systemd"

# For tests that cut networks, which only root can do.
have_network() { (PATH=$PATH:/usr/sbin:/sbin && command -v ip && command -v nft) >/dev/null; }
network_packages="iproute2 nftables"
network_advice="ip and nft, to cut networks in tests"

have_fuzz() { cargo +nightly fuzz --version >/dev/null 2>&1; }
fuzz_packages=""
fuzz_advice="a nightly Rust and cargo-fuzz (rustup toolchain install nightly && cargo install cargo-fuzz)"

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# install_tool TOOL PACKAGE…: installs the packages, unless the tool has a function of its own for that.
install_tool() {
    local tool=$1
    shift
    if declare -F "install_$tool" >/dev/null; then
        "install_$tool"
    else
        apt-get install -qq -y --no-install-recommends "$@"
    fi
}

missing=0
for tool in "$@"; do
    "have_$tool" && continue
    packages="${tool}_packages" advice="${tool}_advice"
    # If rustup manages Rust, the distribution's linters would have another version.
    if [ "$tool" = rust_lint ] && command -v rustup >/dev/null; then
        rustup component add clippy rustfmt >&2 && "have_$tool" && continue
    fi
    if [ -n "${!packages}" ] && can_install; then
        # `make` runs this script several times at once, but only one may use the package manager. A daemon that a
        # package starts must not inherit the lock.
        exec 9<"$0" && flock 9
        if ! "have_$tool"; then
            echo "installing ${!packages} …" >&2
            # shellcheck disable=SC2086 # a list of packages on purpose
            { install_tool "$tool" ${!packages} || { apt-get update -qq && install_tool "$tool" ${!packages}; }; } >/dev/null 9<&-
        fi
        exec 9<&-
        hash -r
        "have_$tool" && continue
    fi
    echo "missing: ${!advice}" >&2
    [ -z "${!packages}" ] || echo "  on Debian or Ubuntu: sudo apt-get install ${!packages}" >&2
    missing=1
done
exit $missing
