#include "gpipe/internal/stage/stage_code.h"

namespace gpipe::internal {
namespace {

std::vector<std::string> names_of(int64_t stage, const std::vector<Layer>& layers) {
  std::vector<std::string> names{"stage " + std::to_string(stage)};
  for (const Layer& layer : layers) names.push_back(layer_text(layer));
  names.emplace_back("the loss function");
  return names;
}

}  // namespace

StageCode::StageCode(int64_t stage, const std::vector<Layer>& layers)
    : stage_(stage), names_(names_of(stage, layers)), running_(names_) {}

}  // namespace gpipe::internal
