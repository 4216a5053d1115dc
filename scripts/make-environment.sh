#!/usr/bin/env bash
# Makes .venv, or brings it up to date: PySpark and the tools as pinned, the framework and the backends editable. A plugin
# with a setup.py is compiled, so it is left to a rule of the Makefile that knows its sources.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
constraints=constraints/spark4x.txt
tools=(coverage Cython ipykernel matplotlib mypy nbclient pip psutil ruff setuptools tomli tox)

# An environment that was moved, or whose Python is gone, is made again.
usable() {
    [ "$("$venv/bin/python" -c 'import os, sys; print(os.path.realpath(sys.prefix))' 2>/dev/null)" = "$(realpath "$venv")" ]
}

if ! usable; then
    python=$(scripts/find-python.sh)
    echo "keyedstate: making $venv with $("$python" --version), the first time takes a few minutes"
    "$python" -m venv --clear "$venv"
fi

install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" "$@"
}

# pip and setuptools come first: what follows is built with these, without an isolated environment for each distribution.
install pip setuptools
install "${tools[@]}"

distributions=(--editable "framework[connect,demo,spark,test]")
for folder in plugins/*/ contrib/sqlite/; do
    if [ -f "$folder/pyproject.toml" ]; then distributions+=(--editable "$folder"); fi
done
# Nothing is compiled here: the Makefile does that when a source changes.
KEYEDSTATE_PURE=1 KEYEDSTATE_HEAP_COW_PURE=1 install --no-build-isolation "${distributions[@]}"
