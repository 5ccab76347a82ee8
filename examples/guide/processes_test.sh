#!/usr/bin/env bash
# Runs the program of a chapter in several processes.
exec "$1" "--processes=$3" -- "$2" --check
