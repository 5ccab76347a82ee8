#!/usr/bin/env bash
# extension_test.sh EXTENSION: tests that the extension exports only its init function, and brings
# neither a malloc nor a log nor a second OpenMP into the process.
set -euo pipefail
# shellcheck source=tools/testing/libtorch_python.sh
source tools/testing/libtorch_python.sh
extension="$1"
[[ "$(head -c4 "${extension}" | tail -c3)" == ELF ]] || skip extension_test "$(<"${extension}")"

exported="$(nm -D --defined-only "${extension}" | awk '{ print $3 }')"
[[ ${exported} == PyInit__gpipe ]] || { printf 'it also exports:\n%s\n' "${exported}" && exit 1; }

needed="$(readelf -d "${extension}" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')"
grep -q '^libtorch_python\.so' <<<"${needed}" || { printf 'it does not need libtorch_python:\n%s\n' "${needed}" && exit 1; }
if grep -E 'tcmalloc|glog|gomp|libpython' <<<"${needed}"; then
  echo "it needs the libraries above, which a Python program has already"
  exit 1
fi
