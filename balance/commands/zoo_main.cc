#include "balance/commands/zoo_main.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "balance/commands/command_model.h"
#include "balance/commands/commands.h"
#include "balance/commands/zoo_model.h"
#include "command/files.h"
#include "command/wrong_value.h"
#include "models/by_name.h"

namespace gpipe::balance {
namespace {

// The most members of a family, because the search takes longer for more members.
constexpr int64_t kMostMembers = 1024;

// A profile is enough to explain a cut: the model need not be named.
CommandModel find_model(const ZooFlags& flags, const std::string& profile) {
  if (!flags.model.empty()) return zoo_model(flags);
  if (profile.empty()) {
    throw std::invalid_argument(absl::StrCat("give --model=NAME or --profile=FILE; there are the ",
                                             "models ", models::model_names()));
  }
  if (flags.image_size) {
    throw std::invalid_argument(absl::StrCat(
        "--image_size is for a profile that is measured, not for one that is read with --profile (",
        command::user_path(profile), "): leave one of them out"));
  }
  CommandModel model;
  model.batch = flags.batch;
  return model;
}

ModelFamily family_of(const std::string& name, std::optional<int64_t> given_step,
                      const ZooFlags& flags) {
  if (std::count(name.begin(), name.end(), '*') != 1) {
    throw command::wrong_value("family", name,
                               "give one * for the number that grows, such as unet:*,160");
  }
  const bool first = absl::StrContains(name, ":*");
  const int64_t step = given_step.value_or(!first ? 8 : absl::StartsWith(name, "unet") ? 1 : 3);
  ModelFamily family;
  family.name = name;
  family.member = [name, step, flags](int64_t member) {
    ZooFlags one = flags;
    one.model = absl::StrReplaceAll(name, {{"*", absl::StrCat(step * member)}});
    return zoo_model(one);
  };
  family.most = std::max<int64_t>(1, kMostMembers / step);
  return family;
}

std::optional<ModelFamily> find_family(const ZooFlags& flags, const std::string& family,
                                       std::optional<int64_t> step) {
  const bool named = !flags.model.empty();
  if (named != family.empty()) {
    throw std::invalid_argument(
        absl::StrCat("give --model=NAME, or --family=NAME with a * for the number that grows",
                     named ? ", not both; there are " : "; there are ", models::model_names()));
  }
  if (!named) return family_of(family, step, flags);
  if (step) throw std::invalid_argument("--step is for --family; leave it out with --model");
  return std::nullopt;
}

}  // namespace

int zoo_main(int argc, const char* const* argv, const std::string& name) {
  static const std::map<std::string, std::string> kExamples = {
      {"balance",
       "  tools/bazel run //balance -- --model=unet:5,64 --partitions=4 --batch=32 --chunks=8\n"
       "  tools/bazel run //balance -- --model=resnet:101 --partitions=2 --save_profile=r.json\n"
       "  tools/bazel run //balance -- --profile=r.json --balance=140,230"},
      {"fit",
       "  tools/bazel run //balance:fit -- --model=unet:24,160 --devices_gib=22,22,22,22\n"
       "  tools/bazel run //balance:fit -- --family=unet:*,160 --batch=32 \\\n"
       "      --devices_gib=22,22,22,22,22,22,22,22"},
      {"memory_plan",
       "  tools/bazel run //balance:memory_plan -- --model=unet:48,160 \\\n"
       "      --balance=800,140,62,36,36,36,36,987 --batch=32 --chunks=128 --svg=unet.svg"},
      {"plan",
       "  tools/bazel run //balance:plan -- --model=unet:5,64 --devices=8 --memory=22GiB\n"
       "  tools/bazel run //balance:plan -- --model=resnet:50 --devices=2 --measure=cpu \\\n"
       "      --output=plan.json"}};
  ZooFlags zoo;
  std::string family;
  std::optional<int64_t> step;
  return run_planning(argc, argv, name, [&](const std::string& command, const std::string&) {
    CommandFace face;
    face.examples = kExamples.at(command);
    face.profiling = "//balance";
    face.find_model = [&](const std::string&) { return given_zoo_model(zoo); };
    if (command == "balance") {
      face.find_model = [&](const std::string& profile) { return find_model(zoo, profile); };
      zoo.add_to(face.flags, ZooFlags::zoo_help(),
                 "Rows of a mini-batch. Default: 32, or with --profile its rows times --chunks.");
    } else if (command == "fit") {
      face.find_family = [&] { return find_family(zoo, family, step); };
      zoo.add_to(face.flags, absl::StrCat("One network: ", models::model_names(), "."),
                 "Rows of a mini-batch. Default: 32.");
      face.flags.add("family", family,
                     "Find the largest network that fits of this family: a name with * for the "
                     "number that grows, such as unet:*,160 or amoebanetd:*,512 or unet:5,*.");
      face.flags.add("step", step, 1, 1 << 16,
                     "Step of the number * of --family, and its first value. Default: 1 for a "
                     "U-Net's convolutions, 3 for normal cells (only these give a network), 8 for "
                     "channels and filters.");
    } else {
      zoo.batch = 32;
      zoo.add_to(face.flags);
    }
    return face;
  });
}

}  // namespace gpipe::balance
