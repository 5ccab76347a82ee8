// explanation_json: an explained cut as a JSON object, which to_json() prints.
#ifndef BALANCE_STEP_EXPLANATION_JSON_H_
#define BALANCE_STEP_EXPLANATION_JSON_H_

#include <nlohmann/json_fwd.hpp>

#include "balance/step/explain.h"

namespace gpipe::balance {

nlohmann::ordered_json as_json(const Explanation& explanation);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_EXPLANATION_JSON_H_
