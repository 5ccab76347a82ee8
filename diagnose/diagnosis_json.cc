#include "diagnose/diagnosis_json.h"

#include <nlohmann/json.hpp>

namespace gpipe {
namespace {

nlohmann::ordered_json json_of(const PipelineSetup& setup) {
  return {{"balance", setup.balance},
          {"chunks", setup.chunks},
          {"checkpoints", names_of(setup.checkpoints)},
          {"schedule", setup.schedule.name},
          {"shared_inputs", setup.shared_inputs}};
}

}  // namespace

nlohmann::ordered_json as_json(const Diagnosis& d) {
  using Json = nlohmann::ordered_json;
  Json json = {{"units", "seconds, bytes"},
               {"device", d.device},
               {"rows", d.rows},
               {"workers", d.workers},
               {"micro_batches", d.micro_batches},
               {"setup", json_of(d.setup)},
               {"step", d.step},
               {"plain", d.plain},
               {"whole_batch", d.whole_batch},
               {"ideal", d.ideal}};
  Json& parts = json["parts"] = Json::array();
  for (const Part& part : d.parts) {
    parts.push_back({{"cause", to_text(part.cause)}, {"seconds", part.seconds}});
  }
  json["cores"] = d.cores;
  json["contention"] = d.contention;
  json["binding"] = d.binding;
  Json& partitions = json["partitions"] = Json::array();
  for (const PartitionDiagnosis& partition : d.partitions) {
    partitions.push_back({{"first_layer", partition.layers.first},
                          {"last_layer", partition.layers.last},
                          {"work", partition.work},
                          {"recompute", partition.recompute},
                          {"memory", partition.memory}});
  }
  json["memory"] = d.memory;
  json["warning"] = d.warning;
  json["memory_limit"] = d.memory_limit;
  Json& advice = json["advice"] = Json::array();
  for (const Advice& advice_item : d.advice) {
    advice.push_back({{"change", to_text(advice_item.change)},
                      {"setup", json_of(advice_item.setup)},
                      {"step", advice_item.step},
                      {"speed_up", advice_item.speed_up},
                      {"memory", advice_item.memory}});
  }
  return json;
}

}  // namespace gpipe
