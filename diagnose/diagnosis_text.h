// to_text, to_json: a diagnosis for people and for programs.
#ifndef DIAGNOSE_DIAGNOSIS_TEXT_H_
#define DIAGNOSE_DIAGNOSIS_TEXT_H_

#include <string>

#include "diagnose/diagnosis.h"

namespace gpipe {

// A text for people: how much time the step lost and to which causes, the partitions, and what to
// change, in at most 80 columns (lists of many partitions are wrapped). A warning comes first, and
// is followed by the figures only. Times are in ms, sizes in MiB. Ends with a newline.
std::string to_text(const Diagnosis& diagnosis);

// The diagnosis as JSON, in seconds and bytes, under the names of the fields. Ends with a newline.
std::string to_json(const Diagnosis& diagnosis);

}  // namespace gpipe

#endif  // DIAGNOSE_DIAGNOSIS_TEXT_H_
