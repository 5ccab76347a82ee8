#!/bin/sh
# precompile.sh PLUGIN_SOURCE IDENTITY STAMP COMPILER ARGUMENTS...: precompiles a header with the
# plugin of gcc that instantiates what the header asks for (instantiate.cc), and writes a comment
# into the file STAMP that changes with the header's text, the options and the compiler, as the file
# IDENTITY knows it (compiler.sh). Without gcc's headers for plugins (Debian: gcc-12-plugin-dev), or
# with another compiler, the header is precompiled without the plugin, and sources that use it take
# longer to compile.
set -eu
# Bazel does not set PATH, but gcc looks for the linker there.
export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"
source="$1" identity="$2" stamp="$3" compiler="$4"
shift 4

# preprocess ARGUMENTS...: prints the text of all that the header includes from LibTorch and the
# system, with macros.
preprocess() {
  left=$#
  while [ "${left}" -gt 0 ]; do
    if [ "$1" = -o ]; then
      shift 2
      left=$((left - 2))
    else
      set -- "$@" "$1"
      shift
      left=$((left - 1))
    fi
  done
  "${compiler}" "$@" -E -dD -P
}
{
  cat "$0" "${source}" "${identity}"
  printf '%s\n' "$@"
  preprocess "$@"
} | sha256sum | sed 's|^\([0-9a-f]*\).*|// \1|' >"${stamp}"

headers="$("${compiler}" -print-file-name=plugin 2>/dev/null || true)/include"
# TMPDIR may be missing, or not writable for us; then /tmp is used.
if [ -e "${headers}/gcc-plugin.h" ] && folder="$(mktemp -d 2>/dev/null || mktemp -d -p /tmp)"; then
  trap 'rm -rf "${folder}"' EXIT
  trap 'exit 143' HUP INT TERM
  if "${compiler}" -x c++ -std=c++17 -O2 -w -fPIC -shared -fno-rtti -isystem "${headers}" "${source}" -o "${folder}/instantiate.so" &&
    "${compiler}" "-fplugin=${folder}/instantiate.so" "$@"; then
    exit 0
  fi
  echo "GPipe: gcc's plugin for LibTorch's precompiled headers does not work here; without it each source takes longer." >&2
else
  echo "GPipe: no ${headers}/gcc-plugin.h (Debian: gcc-12-plugin-dev): each source takes some 5 s longer. Once it is there: tools/bazel shutdown" >&2
fi
# Only the plugin knows the pragma, so a compiler without it must not warn.
"${compiler}" "$@" -Wno-unknown-pragmas
