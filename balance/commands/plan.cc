// The command //balance:plan, for the networks of the zoo.

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "balance/commands/command_model.h"
#include "balance/commands/plan_command.h"
#include "balance/commands/zoo_model.h"

ABSL_FLAG(std::string, model, "", gpipe::balance::zoo_help());
ABSL_FLAG(int64_t, batch, 32, "Rows of a mini-batch.");

namespace gpipe::balance {
namespace {

CommandFace face() {
  CommandFace face;
  face.examples =
      "  tools/bazel run //balance:plan -- --model=unet:5,64 --devices=8 --memory=22GiB\n"
      "  tools/bazel run //balance:plan -- --model=resnet:50 --devices=2 --measure=cpu \\\n"
      "      --output=plan.json";
  face.profiling = "//balance";
  face.find_model = [] {
    return given_zoo_model(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_batch));
  };
  return face;
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  return gpipe::balance::plan_command(argc, argv, gpipe::balance::face());
}
