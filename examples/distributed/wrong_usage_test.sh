#!/bin/bash
# Tests wrong usage over processes: each process must end with exit code 2, whichever has found the
# mistake, and the reason must be printed once.
#   wrong_usage_test.sh PROGRAM TEXT LAUNCH
set -u
program=$1
text=$2
launch=$3
# shellcheck source=command/program_testing.sh
source command/program_testing.sh
train=("$program" --steps=1 --text="$text")

# The program refuses a flag that does not exist.
expect_mistake "there is no flag --step; did you mean --steps?" "${train[@]:1}" --step=3
expect_mistake_of_ranks 3 "there is no flag --step; did you mean --steps?" "${train[@]}" --step=3
expect_mistake_of_ranks 2 "--steps=-1: give a number from 0" "${train[@]}" --steps=-1
expect_mistake_of_ranks 2 ".*did you mean 1f1b?" "${train[@]}" --schedule=1f2b

# This value does not fit the number of processes.
expect_mistake_of_ranks 2 "--replicas=3: each has as many processes, and there are 2 processes" "${train[@]}" --replicas=3
expect_mistake_of_ranks 2 "--stages=1: with --schedule=1f1b they are for 1 process, and there are 2" \
  "${train[@]}" --stages=1
expect_mistake_of_ranks 4 "--stages=2: with --schedule=interleaved they are for 1 process, and there are 2 in each" \
  "${train[@]}" --stages=2 --schedule=interleaved --replicas=2

# Only one process finds these mistakes. One is a file that its machine does not have, one is a flag
# that only this process has, and one it finds while the others make the pipeline.
by_rank 1 --text=/nonexistent "${train[@]}"
expect_mistake_of_ranks 3 "rank 1: --text=/nonexistent" "${command[@]}"
by_rank 2 --step=3 "${train[@]}"
expect_mistake_of_ranks 3 "rank 2: there is no flag --step" "${command[@]}"
by_rank 0 --stages=1000 "${train[@]}"
expect_mistake_of_ranks 3 "rank 0: --stages=1000: the model has" "${command[@]}"
# These flags are right in each process, but they differ, so all processes must end with a message.
by_rank 1 --stages=3 "${train[@]}"
expect_mistake_of_ranks 2 "the balance of pipeline 0 must be the same on all ranks" "${command[@]}"
echo PASSED
