// contradiction, disturbance: what in a diagnosis cannot be true of a machine that did nothing
// else, and whether it did.
#ifndef DIAGNOSE_CONTRADICTION_H_
#define DIAGNOSE_CONTRADICTION_H_

#include <string>

#include "command/other_load.h"
#include "diagnose/diagnosis.h"

namespace gpipe::diagnosis {

// For people, and what to do about it; empty if the measurements agree. They do not where a
// partition has much more to do than the step takes, or the overhead, either way, is more than half
// of the step: what rests on such measurements is no advice.
std::string contradiction(const Diagnosis& diagnosis);

// The same where other work had the cores meanwhile: parts that were measured one after another are
// of different machines then, and what is advised differs from one diagnosis to the next.
std::string disturbance(const command::LoadShares& shares);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_CONTRADICTION_H_
