#!/usr/bin/env bash
# Finds a Python that keyedstate can be set up with and prints its path. If no such Python exists, it installs what is
# missing, if it may (root, apt-get), or says what to install.
#
# PYTHON=/path/to/python makes the choice by hand. A name on PATH proves nothing (a pyenv shim exists for versions that
# are not active and fails when it is run), so every candidate is run before it is believed.
set -euo pipefail

# 3.11 comes first because it is the version keyedstate is developed on; the others follow by the age of their wheels.
preferred_versions="3.11 3.12 3.13 3.10"

# Prints "VERSION PATH" of a candidate that runs and is no virtual environment. With $2=venv it must be able to make one:
# Debian splits ensurepip off into python3-venv.
probe() {
    "$1" - "${2:-}" 2>/dev/null <<'PROBE' || true
import sys
if sys.prefix == sys.base_prefix and sys.version_info >= (3, 10):
    if sys.argv[1:] == ["venv"]:
        import ensurepip, venv
        ensurepip.version()
    print("%d.%d" % sys.version_info[:2], sys.executable)
PROBE
}

candidates() {
    local version directory
    for version in $preferred_versions; do
        type -aP "python$version" || true
    done
    type -aP python3 || true
    for directory in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin "$HOME"/.local/share/uv/python/cpython-3.*/bin; do
        if [ -x "$directory/python3" ]; then echo "$directory/python3"; fi
    done
}

# Prints "VERSION PATH" of every candidate that passes the probe.
working() {
    local candidate
    candidates | while read -r candidate; do
        probe "$candidate" "${1:-}"
    done
}

best() {
    local found version path
    found=$(working venv)
    for version in $preferred_versions; do
        path=$(awk -v version="$version" '$1 == version { sub(/^[^ ]+ /, ""); print; exit }' <<<"$found")
        if [ -n "$path" ]; then
            echo "$path"
            return 0
        fi
    done
    return 1
}

if [ -n "${PYTHON:-}" ]; then
    if [ -z "$(probe "$PYTHON" venv)" ]; then
        echo "keyedstate: PYTHON=$PYTHON does not run, is older than 3.10, is itself a virtual environment, or has no" >&2
        echo "  venv and ensurepip." >&2
        echo "  Give another one, or leave PYTHON out and one is looked for." >&2
        exit 1
    fi
    echo "$PYTHON"
    exit 0
fi

if best; then exit 0; fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "keyedstate: no Python 3.10 to 3.13 with venv found; installing python3 and python3-venv" >&2
    # A broken or unreachable package source must not end the script: the check below says what is missing.
    DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv >&2 || true
    hash -r
    if best; then exit 0; fi
fi

unusable=$(working | sed 's/^/    /')
{
    echo "keyedstate: no Python 3.10, 3.11, 3.12 or 3.13 that can make a virtual environment was found."
    if [ -n "$unusable" ]; then
        echo "  These run, but have no venv/ensurepip or another version:"
        echo "$unusable"
    fi
    echo "  Debian, Ubuntu: apt-get install python3 python3-venv"
    echo "  Anywhere:       make setup PYTHON=/path/to/python3.11"
} >&2
exit 1
