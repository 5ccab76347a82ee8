// to_text, to_json: print an explained cut for people and for programs.
#ifndef BALANCE_STEP_EXPLANATION_TEXT_H_
#define BALANCE_STEP_EXPLANATION_TEXT_H_

#include <string>

#include "balance/step/explain.h"

namespace gpipe::balance {

// Prints a table with a line for each partition, and the predictions for a step, in at most 80
// columns. Times are in ms, sizes in MiB. Ends with a newline.
//
//   part.     layers   forward  backward recompute    params    memory     sent  busy
//   0            0-3      10.0      20.0      10.0      1.00      12.0     2.00   80%
//   1 *          4-5      30.0      60.0         0      1.00      42.0        0   95%
std::string to_text(const Explanation& explanation);

// Prints the same in seconds and bytes, under the names of the fields. Ends with a newline.
std::string to_json(const Explanation& explanation);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_EXPLANATION_TEXT_H_
