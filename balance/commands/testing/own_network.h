// make_model: a small perceptron of the tests' own, as a user's program has one, and what is wrong
// with it if the flag --mistake says so.
#ifndef BALANCE_COMMANDS_TESTING_OWN_NETWORK_H_
#define BALANCE_COMMANDS_TESTING_OWN_NETWORK_H_

#include "balance/choose/training.h"

// Layers of --width; a sample of 8 rows.
gpipe::balance::Training make_model();

#endif  // BALANCE_COMMANDS_TESTING_OWN_NETWORK_H_
