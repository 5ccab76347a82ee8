#!/bin/bash
# c10d.cc is compiled with declarations of Gloo that are ours (third_party/gloo). That is safe as long
# as no code of Gloo comes of them: no table of virtual functions, no type information, no function
# of its classes, and no call of one. Whatever it does with Gloo goes through c10d.
set -eu

found=0
for archive in "$@"; do
  [[ ${archive} == *.a ]] || continue
  symbols="$(nm -C "${archive}")"
  # It is the right file, and nm reads it.
  grep -q 'gpipe::distributed::connect_group' <<<"${symbols}"
  grep -q 'U c10d::ProcessGroupGloo::ProcessGroupGloo' <<<"${symbols}"
  found=1
  # Names of the standard library's templates may have Gloo's in their arguments.
  if grep -E ' (vtable for|typeinfo for|typeinfo name for|VTT for) gloo::| [A-Za-z] gloo::' <<<"${symbols}"; then
    echo "FAILED: code of Gloo in ${archive}" >&2
    exit 1
  fi
done
[[ ${found} == 1 ]] || {
  echo "FAILED: no archive among: $*" >&2
  exit 1
}
