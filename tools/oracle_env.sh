#!/usr/bin/env bash
# Makes the Python environment of the oracles in .venv-oracle at the top of the tree, from
# tools/oracle-requirements.txt. Run again at any time: nothing happens while the requirements are unchanged.
#
#   tools/oracle_env.sh                 # make or refresh it, print the Python to use
#
# Variables: PYTHON            the interpreter to build on (default python3; 3.11 or newer)
#            QUADRILLE_TORCH   what pip installs as torch, e.g. "torch==2.13.0+cpu" or a path to a wheel.
#                              Default: the pin of the requirements file, which may be a large CUDA build on
#                              a machine whose package index serves one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-oracle
wanted=tools/oracle-requirements.txt
python=${PYTHON:-python3}

stamp_text=$(cat "$wanted"; echo "torch ${QUADRILLE_TORCH:-as pinned}")
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$stamp_text" ]; then
  echo "$PWD/$venv/bin/python"; exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "oracle_env: $python is older than 3.11; set PYTHON to a newer one" >&2; exit 1; }
# A symlink means the environment of another work tree is shared: it is refreshed in place, never replaced.
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" \
  || { echo "oracle_env: no venv module: apt-get install python3-venv" >&2; exit 1; }

list=$(mktemp); trap 'rm -f "$list"' EXIT
grep -v '^ *#' "$wanted" > "$list"
if [ -n "${QUADRILLE_TORCH:-}" ]; then
  sed -i '/^torch==/d' "$list"; echo "$QUADRILLE_TORCH" >> "$list"
fi
# reasoning-gym pulls in packages that are compiled here. Everything else is wheels, so without a compiler
# or Python's headers the rest is still installed and only the reasoning-gym example is left out.
header=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["include"] + "/Python.h")')
if ! [ -e "$header" ] || ! command -v cc >/dev/null; then
  echo "oracle_env: no Python headers or no C compiler, so reasoning-gym is left out (apt-get install python3-dev gcc)" >&2
  sed -i '/^reasoning-gym==/d' "$list"
  stamp_text=""   # Look again next time.
fi
echo "oracle_env: installing into $venv (about 2 GB): $(tr '\n' ' ' < "$list")" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$list" >&2
printf '%s\n' "$stamp_text" > "$venv/.stamp"
echo "$PWD/$venv/bin/python"
