// make_model: a user's own model, for the commands of chapters 4 and 18.
#ifndef GUIDE_MY_TRAINING_H_
#define GUIDE_MY_TRAINING_H_

#include "balance/training.h"

gpipe::balance::Training make_model();

#endif  // GUIDE_MY_TRAINING_H_
