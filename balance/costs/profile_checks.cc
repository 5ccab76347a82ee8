#include "balance/costs/profile_checks.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace gpipe::balance {
namespace {

// The most bytes or rows in a profile, so that sums over layers and micro-batches cannot overflow.
constexpr int64_t kMost = int64_t{1} << 50;

class Checks {
 public:
  explicit Checks(const std::string& prefix) : prefix_(prefix) {}

  [[noreturn]] void fail(const std::string& text) const {
    throw std::invalid_argument(prefix_ + text);
  }
  void time(const std::string& field, double value) const {
    if (std::isfinite(value) && value >= 0) return;
    std::ostringstream text;
    text << field << " is " << value << ", expected seconds: a finite number of at least 0";
    fail(text.str());
  }
  void count(const std::string& field, int64_t value) const {
    if (value >= 0 && value <= kMost) return;
    fail(field + " is " + std::to_string(value) + ", expected 0 to " + std::to_string(kMost));
  }

 private:
  const std::string& prefix_;
};

// Whether the text is a word or empty.
bool is_type_name(const std::string& text) {
  return text.size() <= 32 &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
}

}  // namespace

std::string under_autocast(const std::string& autocast) {
  return autocast.empty() ? "without autocast" : "under autocast to " + autocast;
}

std::string training_terms(const std::string& autocast, bool deferred_batch_norm) {
  std::string text;
  if (!autocast.empty()) text += ", " + under_autocast(autocast);
  if (deferred_batch_norm) text += ", batch norms deferred";
  return text;
}

void check_profile(const Profile& profile, const std::string& prefix) {
  const Checks checks(prefix);
  if (profile.layers.empty()) checks.fail("layers is empty, expected at least one layer");
  if (profile.autocast && !is_type_name(*profile.autocast)) {
    checks.fail("autocast is '" + *profile.autocast +
                "', expected the name of a type, such as bfloat16, or nothing");
  }
  checks.count("batch_rows", profile.batch_rows);
  checks.count("input", profile.input);
  for (size_t i = 0; i < profile.layers.size(); ++i) {
    const LayerProfile& layer = profile.layers[i];
    const std::string field = "layers[" + std::to_string(i) + "].";
    checks.time(field + "forward", layer.forward);
    checks.time(field + "backward", layer.backward);
    checks.count(field + "parameters", layer.parameters);
    checks.count(field + "buffers", layer.buffers);
    checks.count(field + "kept", layer.kept);
    checks.count(field + "workspace", layer.workspace);
    checks.count(field + "output", layer.output);
    if (!layer.split) continue;
    checks.time(field + "input_gradient", layer.split->input);
    checks.time(field + "weight_gradient", layer.split->weight);
    checks.count(field + "waiting", layer.split->waiting);
  }
  for (const int64_t input : profile.shared_inputs.value_or(std::vector<int64_t>())) {
    checks.count("shared_inputs", input);
  }
  const auto layers = static_cast<int64_t>(profile.layers.size());
  for (size_t i = 0; i < profile.skips.size(); ++i) {
    const SkipProfile& skip = profile.skips[i];
    const std::string field = "skips[" + std::to_string(i) + "]";
    if (skip.from < 0 || skip.from >= skip.to || skip.to >= layers) {
      checks.fail(field + " leads from layer " + std::to_string(skip.from) + " to layer " +
                  std::to_string(skip.to) + ", expected 0 <= from < to < " +
                  std::to_string(layers));
    }
    checks.count(field + ".bytes", skip.bytes);
  }
}

}  // namespace gpipe::balance
