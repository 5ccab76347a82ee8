#!/usr/bin/env bash
# Tests that the first C++ block of the README is quickstart.cc, letter by letter.
# shellcheck disable=SC2016 # The back-quotes are Markdown's.
diff <(sed -n '/^```cpp$/,/^```$/{/^```/!p;/^```$/q}' README.md) examples/quickstart/quickstart.cc
