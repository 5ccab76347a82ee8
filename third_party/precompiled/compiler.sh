#!/bin/sh
# compiler.sh COMPILER: what a header that it precompiles depends on besides sources and options: gcc takes one only if
# the very same gcc has made it, and with gcc's headers for plugins it is made otherwise (precompile.sh).
compiler="$1"
"${compiler}" --version 2>&1 | head -n 1
# What compiles, behind the command. Compilers that have no such program print its name.
program="$("${compiler}" -print-prog-name=cc1plus 2>/dev/null)"
if [ -f "${program}" ]; then sha256sum <"${program}"; fi
headers="$("${compiler}" -print-file-name=plugin 2>/dev/null)/include"
if [ -e "${headers}/gcc-plugin.h" ]; then echo "with headers for plugins"; else echo "without headers for plugins"; fi
