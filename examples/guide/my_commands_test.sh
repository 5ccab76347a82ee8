#!/bin/bash
# Tests the programs of chapters 4 and 18 with the command lines that they show.
#   my_commands_test.sh MY_BALANCE MY_FIT
set -u
# shellcheck source=command/program_testing.sh
source command/program_testing.sh

"$1" --partitions=2 --chunks=8 --timeout=0.1 >"$work/balance.log" 2>&1 || fail "my_balance"
grep -q "measuring the model: 4 rows on cpu" "$work/balance.log" || fail "what is measured is not said"
grep -q "^balance: [0-9],[0-9]$" "$work/balance.log" || fail "no balance of two partitions"
"$2" --devices_gib=22,22 --optimizer=adam >"$work/fit.log" 2>&1 || fail "my_fit"
grep -q "^the model: 32 rows in .*, adam$" "$work/fit.log" || fail "no word on the rows"
grep -q "^balance: " "$work/fit.log" || fail "no balance that fits"
if grep -q "gives no loss" "$work/fit.log"; then fail "the loss is not taken"; fi
echo PASSED
