// to_text, to_json: a diagnosis for people and for programs.
#ifndef DIAGNOSE_DIAGNOSIS_TEXT_H_
#define DIAGNOSE_DIAGNOSIS_TEXT_H_

#include <string>

#include "diagnose/diagnosis.h"

namespace gpipe {

// What the step lost and to what, the partitions, and what to change, in at most 80 columns (lists
// of many partitions are wrapped). A warning is said first, and then no more than the figures.
// Times are in ms, sizes in MiB. Ends with a newline.
std::string to_text(const Diagnosis& diagnosis);

// The same, in seconds and bytes, under the names of the fields. Ends with a newline.
std::string to_json(const Diagnosis& diagnosis);

}  // namespace gpipe

#endif  // DIAGNOSE_DIAGNOSIS_TEXT_H_
