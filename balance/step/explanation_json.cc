#include "balance/step/explanation_json.h"

#include <nlohmann/json.hpp>

namespace gpipe::balance {

nlohmann::ordered_json as_json(const Explanation& explanation) {
  using Json = nlohmann::ordered_json;
  Json json = {{"units", "seconds, bytes"},
               {"device", explanation.device},
               {"batch_rows", explanation.batch_rows},
               {"chunks", explanation.chunks},
               {"balance", explanation.balance()},
               {"step", explanation.step},
               {"bubble", explanation.bubble},
               {"one_device", explanation.one_device},
               {"speed_up", explanation.speed_up},
               {"binding", explanation.binding},
               {"splits", explanation.splits},
               {"halves_measured", explanation.halves_measured}};
  if (!explanation.autocast.empty()) json["autocast"] = explanation.autocast;
  if (explanation.deferred_batch_norm) json["deferred_batch_norm"] = true;
  Json& partitions = json["partitions"] = Json::array();
  for (const PartitionExplanation& partition : explanation.partitions) {
    partitions.push_back({{"first_layer", partition.layers.first},
                          {"last_layer", partition.layers.last},
                          {"forward", partition.forward},
                          {"backward", partition.backward},
                          {"input_gradient", partition.input_gradient},
                          {"weight_gradient", partition.weight_gradient},
                          {"recompute", partition.recompute},
                          {"parameters", partition.parameters},
                          {"memory", partition.memory},
                          {"waiting", partition.waiting},
                          {"sent", partition.sent},
                          {"busy", partition.busy}});
  }
  return json;
}

}  // namespace gpipe::balance
