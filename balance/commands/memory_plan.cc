// The command //balance:memory_plan, for the networks of the zoo.

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "balance/commands/command_model.h"
#include "balance/commands/memory_plan_command.h"
#include "balance/commands/zoo_model.h"

ABSL_FLAG(std::string, model, "", gpipe::balance::zoo_help());
ABSL_FLAG(int64_t, batch, 32, "Rows of a mini-batch.");

namespace gpipe::balance {
namespace {

CommandFace face() {
  CommandFace face;
  face.examples =
      "  tools/bazel run //balance:memory_plan -- --model=unet:48,160 \\\n"
      "      --balance=800,140,62,36,36,36,36,987 --batch=32 --chunks=128 --svg=unet.svg";
  face.find_model = [] {
    return given_zoo_model(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_batch));
  };
  return face;
}

}  // namespace
}  // namespace gpipe::balance

int main(int argc, char** argv) {
  return gpipe::balance::memory_plan_command(argc, argv, gpipe::balance::face());
}
