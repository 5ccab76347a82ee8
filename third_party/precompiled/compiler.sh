#!/bin/sh
# compiler.sh COMPILER: prints what a precompiled header depends on besides sources and options. gcc
# takes a precompiled header only if the very same gcc has made it, and with gcc's headers for
# plugins it is made in another way (precompile.sh).
compiler="$1"
"${compiler}" --version 2>&1 | head -n 1
# cc1plus is the program that compiles behind the command g++. A compiler that does not have it
# prints the name only.
program="$("${compiler}" -print-prog-name=cc1plus 2>/dev/null)"
if [ -f "${program}" ]; then sha256sum <"${program}"; fi
headers="$("${compiler}" -print-file-name=plugin 2>/dev/null)/include"
if [ -e "${headers}/gcc-plugin.h" ]; then echo "with headers for plugins"; else echo "without headers for plugins"; fi
