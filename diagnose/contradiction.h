// contradiction, disturbance: which measurements of a diagnosis cannot be true for a machine that
// did nothing else, and whether the machine did something else.
#ifndef DIAGNOSE_CONTRADICTION_H_
#define DIAGNOSE_CONTRADICTION_H_

#include <string>

#include "command/other_load.h"
#include "diagnose/diagnosis.h"

namespace gpipe::diagnosis {

// A text for people that says which measurements contradict each other and what to do about it;
// empty if they agree. They contradict each other if a partition has much more to do than the step
// takes, or if the overhead, positive or negative, is more than half of the step. No advice can be
// based on such measurements.
std::string contradiction(const Diagnosis& diagnosis);

// A text for people, if other work had the cores during the measurements; otherwise empty. In that
// case parts that were measured one after another belong to different conditions, and advice
// differs from one diagnosis to the next.
std::string disturbance(const command::LoadShares& shares);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_CONTRADICTION_H_
