#include "examples/language_model/bits.h"

#include <zlib.h>

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace language_model {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kText[] = "text", kSchedule[] = "schedule", kThreads[] = "threads";

// The value as in a flag: without the quotes of JSON.
std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string as_flag(const BitsDifference::Flag& flag) {
  if (flag.name == kText) return "the same --text";
  if (flag.name == kSchedule) return "a --schedule with the order of the checkpoint's";
  if (flag.name == "groups" && flag.saved == "none")
    return "no --groups and no --replicas, of which each is a group";
  if (flag.saved == "true") return "--" + flag.name;
  if (flag.saved == "false") return "--no" + flag.name;
  return "--" + flag.name + "=" + flag.saved;
}

bool is_same(const std::string& name, const Json& saved, const Json& now) {
  // On accelerators threads change nothing.
  if (name == kThreads && (saved == 0 || now == 0)) return true;
  return saved == now;
}

}  // namespace

std::string bits_of(const Settings& settings, int64_t threads) {
  // Gradients are added up in as many groups as there are replicas, unless --groups is given.
  const int64_t groups = settings.groups > 0     ? settings.groups
                         : settings.replicas > 1 ? settings.replicas
                                                 : 0;
  const uLong checksum =
      crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(settings.text.data()),
              settings.text.size());
  const auto& model = settings.model;
  Json bits;
  // The text counts, and not the path of its file.
  bits[kText] = absl::StrFormat("%d bytes, CRC-32 %08x", settings.text.size(), checksum);
  bits["documents"] = settings.documents_are;
  bits["length"] = settings.length;
  bits["packed"] = settings.packed;
  bits["model"] = settings.model_name;
  bits["blocks"] = model.num_layers();
  bits["width"] = model.hidden_size();
  bits["heads"] = model.num_heads();
  bits["dropout"] = model.residual_dropout();
  bits["tied"] = model.tied();
  bits["batch"] = settings.batch;
  bits["short_last"] = settings.short_last;
  bits["steps"] = settings.steps;
  bits["learning_rate"] = settings.learning_rate;
  bits["warm_up"] = settings.warm_up;
  bits["weight_decay"] = settings.weight_decay;
  bits["clip"] = settings.clip;
  bits["seed"] = settings.seed;
  bits["bfloat16"] = settings.bfloat16;
  bits["chunks"] = settings.chunks;
  bits["groups"] = groups > 0 ? Json(groups) : Json("none");
  bits[kSchedule] = settings.chunks == 1 || adds_in_order(settings.schedule.make)
                        ? "gradients added up in the order of the micro-batches"
                        : "gradients added up in another order (" + settings.schedule.name + ")";
  bits[kThreads] = threads;
  return bits.dump();
}

BitsDifference compare_bits(const std::string& saved, const std::string& now) {
  const Json then = Json::parse(saved, nullptr, /*allow_exceptions=*/false);
  if (!then.is_object()) {
    throw std::runtime_error("the checkpoint's settings are not those of this program: " + saved);
  }
  const Json here = Json::parse(now);
  BitsDifference difference;
  for (const auto& [name, value] : here.items()) {
    const auto found = then.find(name);
    if (found == then.end()) {
      difference.unknown.push_back(name);
    } else if (!is_same(name, *found, value)) {
      difference.flags.push_back({name, value_text(*found), value_text(value)});
    }
  }
  for (const auto& [name, value] : then.items()) {
    if (!here.contains(name)) difference.unknown.push_back(name);
  }
  return difference;
}

std::string to_text(const BitsDifference& difference) {
  return absl::StrJoin(difference.flags, "\n", [](std::string* out, const auto& flag) {
    absl::StrAppendFormat(out, "  --%s: %s in the checkpoint, %s now", flag.name, flag.saved,
                          flag.now);
  });
}

std::string flags_of_saved(const BitsDifference& difference) {
  return absl::StrJoin(difference.flags, " ",
                       [](std::string* out, const auto& flag) { out->append(as_flag(flag)); });
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
  flags["save_every"] = settings.save_every;
  flags["sample"] = settings.sample;
  flags["samples"] = settings.samples;
  flags["cache"] = settings.cache;
  flags["prompt"] = settings.prompt;
  flags["temperature"] = settings.temperature;
  // Prompts may have any bytes.
  return flags.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string difference_of_ranks(const std::vector<std::string>& shared_flags) {
  std::set<std::string> said;
  std::vector<std::string> lines;
  for (size_t rank = 1; rank < shared_flags.size(); ++rank) {
    for (const auto& flag : compare_bits(shared_flags.front(), shared_flags[rank]).flags) {
      if (!said.insert(flag.name).second) continue;
      lines.push_back(
          absl::StrFormat("--%s must be the same on all ranks: rank 0 has %s, rank %d has %s",
                          flag.name, flag.saved, rank, flag.now));
    }
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace language_model
