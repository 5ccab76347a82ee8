#include "examples/language_model/bits.h"

#include <nlohmann/json.hpp>

namespace language_model {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSchedule[] = "schedule";

}  // namespace

std::string bits_of(const Settings& settings, int64_t threads) {
  const auto& model = settings.model;
  Json bits;
  // The content of the text counts, not the path of its file.
  bits["text"] = examples::content_of(settings.text);
  bits["documents"] = settings.documents_are;
  bits["length"] = settings.length;
  bits["packed"] = settings.packed;
  bits["model"] = settings.model_name;
  bits["blocks"] = model.num_layers();
  bits["width"] = model.hidden_size();
  bits["heads"] = model.num_heads();
  bits["dropout"] = model.residual_dropout();
  bits["tied"] = model.tied();
  bits["short_last"] = settings.short_last;
  bits.update(examples::training_bits(settings));
  bits.update(examples::pipeline_bits(settings, threads));
  return bits.dump();
}

std::string shared_flags(const Settings& settings) {
  Json flags = Json::parse(bits_of(settings, settings.threads));
  flags[kSchedule] = settings.schedule.name;
  flags["replicas"] = settings.replicas;
  flags["zero"] = settings.zero;
  flags["plain"] = settings.plain;
  flags["stop_at"] = settings.stop_at;
  flags["validate_every"] = settings.validate_every;
  flags["validation_rows"] = settings.validation_rows;
  flags["every_loss"] = settings.every_loss;
  flags["resilient"] = settings.resilient;
  flags["snapshot_every"] = settings.snapshot_every;
  flags["save_every"] = settings.save_every;
  flags["sample"] = settings.sample;
  flags["samples"] = settings.samples;
  flags["cache"] = settings.cache;
  flags["prompt"] = settings.prompt;
  flags["temperature"] = settings.temperature;
  // A prompt may have bytes that are not UTF-8, which dump() would refuse, so they are replaced.
  return flags.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace language_model
