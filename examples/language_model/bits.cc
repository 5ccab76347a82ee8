#include "examples/language_model/bits.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gpipe/saving/saving.h"

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
  flags["sample"] = settings.sampling.bytes;
  flags["samples"] = settings.sampling.samples;
  flags["cache"] = settings.sampling.cache;
  flags["prompt"] = settings.sampling.prompt;
  flags["temperature"] = settings.sampling.temperature;
  // A prompt may have bytes that are not UTF-8, which dump() would refuse, so they are replaced.
  return flags.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void check_resume(const Settings& settings, const std::string& bits, bool tells) {
  if (settings.resume.empty()) return;
  const auto warn = [&](const std::string& text) {
    if (tells) std::cerr << "warning: " << settings.resume_as << ": " << text << std::endl;
  };
  const std::string saved = gpipe::read_progress(settings.resume).settings;
  const Json json = Json::parse(saved, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("kept")) {
    throw std::invalid_argument("--resume=" + settings.resume +
                                ": a run with --resilient has saved it; give --resilient --save=" +
                                settings.resume + ", which goes on from it");
  }
  if (saved.empty()) {
    warn(
        "it does not say with which flags it was trained; with others than these the run goes "
        "on with other bits");
    return;
  }
  const BitsDifference difference = compare_bits(saved, bits);
  if (!difference.unknown.empty()) {
    warn(
        "another version of this program has saved it; if it did otherwise what these flags "
        "say, the run goes on with other bits: --" +
        absl::StrJoin(difference.unknown, ", --"));
  }
  if (difference.flags.empty()) return;
  if (!settings.resume_anyway) {
    throw std::invalid_argument(absl::StrFormat(
        "%s: the run would go on with other bits than if it had not been stopped:\n%s\n"
        "give %s; or --resume_anyway to go on with what is given now",
        settings.resume_as, to_text(difference), flags_of_saved(difference)));
  }
  if (!tells) return;
  std::cout << "goes on with other bits than if it had not been stopped:\n"
            << to_text(difference) << std::endl;
}

}  // namespace language_model
