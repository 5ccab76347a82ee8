// make_model: makes a small perceptron as a user's program would. The flag --mistake puts a mistake
// into it.
#ifndef BALANCE_COMMANDS_TESTING_OWN_NETWORK_H_
#define BALANCE_COMMANDS_TESTING_OWN_NETWORK_H_

#include "balance/choose/training.h"

// Returns the network, whose layers have --width features, with a sample of 8 rows.
gpipe::balance::Training make_model();

#endif  // BALANCE_COMMANDS_TESTING_OWN_NETWORK_H_
