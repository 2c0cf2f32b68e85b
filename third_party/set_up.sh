#!/usr/bin/env bash
# Gets what pip cannot bring, and says within seconds what is not to be had: set_up.sh PART...
#   module   a C++ compiler, Python and its headers
#   venv     what `python3 -m venv` needs
#   tests    GoogleTest
#   fuzz     clang with libFuzzer
# As root with apt it installs what is missing. With apt alone it unpacks Debian's package files under build/third_party,
# where the CMake recipes beside this file look. Elsewhere it fetches GoogleTest's release archive, and names the rest.
# PYTHON and CXX name another interpreter and compiler.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
unpacked=$(dirname "$recipes")/build/third_party
python=${PYTHON:-python3}
cxx=${CXX:-c++}
export RES_OPTIONS="timeout:2 attempts:1"  # of names: a machine without a network is to hear it soon
apt=(-o Acquire::Retries=0 -o Acquire::http::Timeout=4 -o Acquire::https::Timeout=4)

say() { echo "reprise: $*" >&2; }
wants() { [[ " $parts " == *" $1 "* ]]; }
has() { command -v "$1" >/dev/null; }
is_root() { [ "$(id -u)" = 0 ]; }

# missing WHAT INSTALL UNPACK: the Debian packages that bring WHAT when they are installed, and when they are unpacked.
missing() {
  lacks+=("$1")
  read -ra packages <<<"$2" && install+=("${packages[@]}")
  [ -z "$3" ] || unpack+=("$3")
}

look_for_python() {
  if ! has "$python"; then
    if [ "$python" = python3 ]; then
      missing "Python 3.10 or newer with venv and headers" "python3 python3-venv python3-dev" ""
    else
      missing "the interpreter $python" "" ""
    fi
    return
  fi
  local facts version include venv executable debian=
  facts=$("$python" -c 'import os, sys, sysconfig
from importlib.util import find_spec
include = sysconfig.get_path("include")
print("%d.%d" % sys.version_info[:2], include if os.path.exists(os.path.join(include, "Python.h")) else "-",
      "venv" if find_spec("venv") and find_spec("ensurepip") else "-", os.path.realpath(sys.executable))') || { missing "an interpreter that runs ($python does not)" "" "" && return; }
  read -r version include venv executable <<<"$facts"
  if [ "${version%%.*}" -lt 3 ] || { [ "${version%%.*}" = 3 ] && [ "${version#*.}" -lt 10 ]; }; then
    missing "Python 3.10 or newer ($python is $version; another one: make PYTHON=/path/to/python3)" "" ""
    return
  fi
  # Debian's packages are of use to Debian's interpreter only.
  if has dpkg-query && dpkg-query -S "$executable" >/dev/null 2>&1; then debian=yes; fi
  if wants module && [ "$include" = - ] && ! compgen -G "$unpacked/usr/include/python$version/Python.h" >/dev/null; then
    missing "the headers of Python $version" ${debian:+"python$version-dev"} ${debian:+"libpython$version-dev"} "" ""
  fi
  if wants venv && [ "$venv" = - ] && ! compgen -G "$unpacked/usr/share/python-wheels/pip-*.whl" >/dev/null; then
    missing "venv of Python $version" ${debian:+"python$version-venv"} ${debian:+python3-pip-whl} "" ""
  fi
}

# compiles OPTION...: the source on stdin.
compiles() { $cxx -std=c++20 -fopenmp -x c++ "$@" - >/dev/null 2>&1; }

look_for_compiler() {
  [[ "${CMAKE_ARGS:-}" == *CMAKE_CXX_COMPILER* ]] && return
  if ! has "${cxx%% *}"; then
    if [ -n "${CXX:-}" ]; then missing "the compiler CXX=$CXX" "" ""; else missing "a C++ compiler" g++ ""; fi
  elif ! compiles -fsyntax-only <<<$'#include <compare>\n#include <omp.h>\n#include <span>\nstatic_assert(__cplusplus >= 202002L);'; then
    missing "a C++ compiler that has C++20 and OpenMP ($cxx does not; set CXX, g++ from 12 on will do)" "" ""
  fi
}

# GTEST_FLAG_SET came with 1.12. Only a compiler can tell; without one, only root may get both.
look_for_googletest() {
  has "${cxx%% *}" || { is_root && [ -z "${CXX:-}" ]; } || return 0
  if [ -e "$unpacked/googletest/CMakeLists.txt" ] || [ -n "${GTest_ROOT:-}${GTest_DIR:-}" ]; then return; fi
  has "${cxx%% *}" && compiles -E -isystem "$unpacked/usr/include" \
    <<<$'#include <gtest/gtest.h>\n#ifndef GTEST_FLAG_SET\n#error\n#endif' && return
  missing "GoogleTest 1.12 or newer" libgtest-dev libgtest-dev
}

look_for_fuzzer() {
  has clang++-14 && echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' |
    clang++-14 -fsanitize=fuzzer -x c++ - -o /dev/null 2>/dev/null && return
  missing "clang++-14 with libFuzzer" "clang-14 libclang-rt-14-dev" ""
}

look() {
  lacks=() install=() unpack=()
  if wants module || wants venv; then look_for_python; fi
  if wants module || wants tests; then look_for_compiler; fi
  if wants tests; then look_for_googletest; fi
  if wants fuzz; then look_for_fuzzer; fi
  [ "${#lacks[@]}" -gt 0 ]
}

install_packages() {
  say "installing ${install[*]} (apt-get install)"
  apt-get "${apt[@]}" -qq update || true  # one broken source among many is no reason to stop
  DEBIAN_FRONTEND=noninteractive apt-get "${apt[@]}" -qq -y --no-install-recommends install "${install[@]}" >&2 || true
}

# With lists of its own where the system's are empty or old.
unpack_packages() {
  say "unpacking ${unpack[*]} under build/third_party (nothing is installed)"
  mkdir -p "$unpacked/apt/lists/partial" "$unpacked/apt/cache/archives/partial"
  cd "$unpacked/apt"
  local own=(-o "Dir::State::lists=$unpacked/apt/lists" -o "Dir::Cache=$unpacked/apt/cache")
  apt-get "${apt[@]}" -qq download "${unpack[@]}" 2>/dev/null ||
    { apt-get "${apt[@]}" "${own[@]}" -qq update && apt-get "${apt[@]}" "${own[@]}" -qq download "${unpack[@]}"; } || true
  local file
  for file in *.deb; do [ ! -e "$file" ] || dpkg-deb -x "$file" "$unpacked"; done
  rm -rf "$unpacked/apt"
}

fetch_googletest() {
  local url hash
  url=$(sed -n 's/^ *URL \(.*\)/\1/p' "$recipes/googletest.cmake")
  hash=$(sed -n 's/^ *URL_HASH SHA256=//p' "$recipes/googletest.cmake")
  say "fetching $url"
  mkdir -p "$unpacked"
  "$python" - "$url" "$hash" "$unpacked" <<'EOF' || return 0
import hashlib, io, os, shutil, sys, tarfile, urllib.request

url, wanted, folder = sys.argv[1:]
try:
    data = urllib.request.urlopen(url, timeout=4).read()
except OSError as error:
    sys.exit(f"reprise: {error}")
got = hashlib.sha256(data).hexdigest()
if got != wanted:
    sys.exit(f"reprise: wanted an archive of SHA-256 {wanted} but got {got}")
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    top = archive.getnames()[0].split("/")[0]
    archive.extractall(folder)
shutil.rmtree(os.path.join(folder, "googletest"), ignore_errors=True)
os.rename(os.path.join(folder, top), os.path.join(folder, "googletest"))
EOF
}

parts="$*"
[ -n "$parts" ] || { echo "usage: set_up.sh module|venv|tests|fuzz ..." >&2; exit 2; }
look || exit 0
if has apt-get && is_root && [ "${#install[@]}" -gt 0 ]; then
  install_packages
  look || exit 0
elif has apt-get && has dpkg-deb && ! is_root && [ "${#unpack[@]}" -gt 0 ]; then
  (unpack_packages)
  look || exit 0
fi
# Nothing is fetched for a build that cannot begin.
if [ "${lacks[*]}" = "GoogleTest 1.12 or newer" ]; then
  fetch_googletest
  look || exit 0
fi
by_hand=
if [ "${#install[@]}" -gt 0 ] && has apt-get; then by_hand=": apt-get install ${install[*]}"; fi
printf -v lacking '%s, ' "${lacks[@]}"
say "missing, to be installed by hand$by_hand: ${lacking%, }"
exit 1
