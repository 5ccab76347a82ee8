#!/usr/bin/env bash
# The first C++ block of the README is quickstart.cc, letter by letter.
diff <(sed -n '/^```cpp$/,/^```$/{/^```/!p;/^```$/q}' README.md) examples/quickstart/quickstart.cc
