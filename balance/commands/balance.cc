// The command //balance, for the networks of the zoo.

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "balance/commands/balance_command.h"
#include "balance/commands/command_model.h"
#include "balance/commands/zoo_model.h"
#include "command/files.h"
#include "models/by_name.h"

ABSL_DECLARE_FLAG(std::string, profile);
ABSL_FLAG(std::string, model, "", gpipe::balance::zoo_help());
ABSL_FLAG(std::optional<int64_t>, batch, std::nullopt,
          "Rows of a mini-batch. Default: 32, or with --profile its rows times --chunks.");

namespace gpipe::balance {
namespace {

// A profile is enough to explain a cut: the model need not be named.
CommandModel find_model() {
  const std::string name = absl::GetFlag(FLAGS_model);
  const std::optional<int64_t> batch = absl::GetFlag(FLAGS_batch);
  if (!name.empty()) return zoo_model(name, batch);
  const std::string profile = absl::GetFlag(FLAGS_profile);
  if (profile.empty()) {
    throw std::invalid_argument(absl::StrCat("give --model=NAME or --profile=FILE; there are the ",
                                             "models ", models::model_names()));
  }
  if (zoo_image_size()) {
    throw std::invalid_argument(absl::StrCat(
        "--image_size is for a profile that is measured, not for one that is read with --profile (",
        command::user_path(profile), "): leave one of them out"));
  }
  CommandModel model;
  model.batch = batch;
  return model;
}

CommandFace face() {
  CommandFace face;
  face.examples =
      "  tools/bazel run //balance -- --model=unet:5,64 --partitions=4 --batch=32 --chunks=8\n"
      "  tools/bazel run //balance -- --model=resnet:101 --partitions=2 --save_profile=r.json\n"
      "  tools/bazel run //balance -- --profile=r.json --balance=140,230";
  face.find_model = find_model;
  return face;
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  return gpipe::balance::balance_command(argc, argv, gpipe::balance::face());
}
