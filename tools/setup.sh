#!/usr/bin/env bash
# Installs what the build needs and is not here yet, and says what it installs. Quick when nothing is missing.
#
#   tools/setup.sh [PACKAGE...]     Debian packages beside the usual ones (make test asks for npm)
#
# 1. Debian packages, by apt (as root, or through sudo).
# 2. A virtual environment .venv with the torch wheel, for its C++ library; Python itself is not used at run time.
#    QUADRILLE_TORCH holds the pip arguments for it (default: torch==2.13.0). Where the default wheel is a CUDA
#    build of several GB, name a CPU build there, for example QUADRILLE_TORCH="torch==2.13.0+cpu -f FOLDER_OR_INDEX".
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache mold pkg-config python3-venv
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev libspdlog-dev libgtest-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev "$@")
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing+=("$package")
done
# A tool that stands in the path without a Debian package is as good.
for pair in npm:npm cmake:cmake ninja:ninja-build; do
  command -v "${pair%%:*}" >/dev/null && missing=("${missing[@]/#${pair##*:}/}")
done
missing=($(printf '%s\n' "${missing[@]:-}" | sed '/^$/d'))

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ]; then as_root=()
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=(sudo)
  elif command -v sudo >/dev/null && [ -t 0 ] && sudo -v; then as_root=(sudo)
  else
    echo "setup: these Debian packages are missing, and installing them needs root: ${missing[*]}" >&2
    echo "setup: ask an administrator for: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing Debian packages: ${missing[*]}"
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
    tail -15 "$log" >&2
    echo "setup: apt-get failed (whole output: $log)" >&2
    exit 1
  fi
  rm -f "$log"
fi

torch=${QUADRILLE_TORCH:-torch==2.13.0}
if [ "$(cat .venv/.quadrille-torch 2>/dev/null)" != "$torch" ]; then
  echo "setup: installing $torch into .venv (C++ library only, about 0.8 GB on disk)"
  rm -rf .venv
  python3 -m venv .venv
  # Only the package itself: its Python dependencies are for Python.
  # shellcheck disable=SC2086
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $torch
  ls .venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so >/dev/null 2>&1 || {
    echo "setup: $torch brought no libtorch_cpu.so; set QUADRILLE_TORCH to another build" >&2; exit 1; }
  echo "$torch" > .venv/.quadrille-torch
fi
