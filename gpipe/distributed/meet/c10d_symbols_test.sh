#!/bin/bash
# c10d.cc is compiled with declarations of Gloo that are ours (third_party/gloo). That is safe as
# long as they produce no code of Gloo: no table of virtual functions, no type information, no
# function of its classes, and no call of one. All that c10d.cc does with Gloo must go through c10d.
set -eu

symbols="$(<"$1")" # as nm -C prints them
# The file must be the right one, and nm must have been able to read it.
grep -q 'gpipe::distributed::connect_group' <<<"${symbols}"
grep -q 'U c10d::ProcessGroupGloo::ProcessGroupGloo' <<<"${symbols}"
# Names of the standard library's templates may have Gloo's in their arguments.
if grep -E ' (vtable for|typeinfo for|typeinfo name for|VTT for) gloo::| [A-Za-z] gloo::' <<<"${symbols}"; then
  echo "FAILED: code of Gloo in c10d.cc's object file" >&2
  exit 1
fi
