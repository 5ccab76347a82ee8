// diagnosis_json: a diagnosis as the JSON that to_json() writes.
#ifndef DIAGNOSE_DIAGNOSIS_JSON_H_
#define DIAGNOSE_DIAGNOSIS_JSON_H_

#include <nlohmann/json_fwd.hpp>

#include "diagnose/diagnosis.h"

namespace gpipe {

nlohmann::ordered_json as_json(const Diagnosis& diagnosis);

}  // namespace gpipe

#endif  // DIAGNOSE_DIAGNOSIS_JSON_H_
