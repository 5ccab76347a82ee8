// The command //balance:fit, for the networks of the zoo and their families.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "balance/commands/command_model.h"
#include "balance/commands/fit_command.h"
#include "balance/commands/zoo_model.h"
#include "command/flag_values.h"
#include "command/wrong_value.h"
#include "models/by_name.h"

ABSL_FLAG(std::string, model, "",
          "One network: " + std::string(gpipe::models::model_names()) + ".");
ABSL_FLAG(std::string, family, "",
          "Find the largest network that fits of this family: a name with * for the number that "
          "grows, such as unet:*,160 or amoebanetd:*,512 or unet:5,*.");
ABSL_FLAG(
    std::optional<int64_t>, step, std::nullopt,
    "Step of the number * of --family, and its first value. Default: 1 for a U-Net's "
    "convolutions, 3 for normal cells (only these give a network), 8 for channels and filters.");
ABSL_FLAG(std::optional<int64_t>, batch, std::nullopt, "Rows of a mini-batch. Default: 32.");

namespace gpipe::balance {
namespace {

// The most members of a family, because the search takes longer for more members.
constexpr int64_t kMostMembers = 1024;

ModelFamily family_of(const std::string& name, std::optional<int64_t> given_step) {
  if (std::count(name.begin(), name.end(), '*') != 1) {
    throw command::wrong_value("family", name,
                               "give one * for the number that grows, such as unet:*,160");
  }
  const bool first = absl::StrContains(name, ":*");
  const int64_t step = given_step.value_or(!first ? 8 : absl::StartsWith(name, "unet") ? 1 : 3);
  ModelFamily family;
  family.name = name;
  family.member = [name, step](int64_t member) {
    return zoo_model(absl::StrReplaceAll(name, {{"*", absl::StrCat(step * member)}}),
                     absl::GetFlag(FLAGS_batch));
  };
  family.most = std::max<int64_t>(1, kMostMembers / step);
  return family;
}

std::optional<ModelFamily> find_family() {
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::string family = absl::GetFlag(FLAGS_family);
  if (model.empty() == family.empty()) {
    throw std::invalid_argument(absl::StrCat(
        "give --model=NAME, or --family=NAME with a * for the number that grows",
        model.empty() ? "; there are " : ", not both; there are ", models::model_names()));
  }
  const std::optional<int64_t> step =
      command::in_range("step", absl::GetFlag(FLAGS_step), 1, 1 << 16);
  if (model.empty()) return family_of(family, step);
  if (step) throw std::invalid_argument("--step is for --family; leave it out with --model");
  return std::nullopt;
}

CommandFace face() {
  CommandFace face;
  face.examples =
      "  tools/bazel run //balance:fit -- --model=unet:24,160 --devices_gib=22,22,22,22\n"
      "  tools/bazel run //balance:fit -- --family=unet:*,160 --batch=32 \\\n"
      "      --devices_gib=22,22,22,22,22,22,22,22";
  face.find_model = [] {
    return zoo_model(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_batch));
  };
  face.find_family = find_family;
  return face;
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  return gpipe::balance::fit_command(argc, argv, gpipe::balance::face());
}
