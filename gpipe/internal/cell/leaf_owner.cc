#include "gpipe/internal/cell/leaf_owner.h"

#include <c10/util/Exception.h>

#include "text/shown.h"

namespace gpipe::internal {

int64_t owner_of(const RunContext& run, int64_t stage, c10::Device device, const at::Tensor& leaf,
                 const ModelState::Parameter* parameter) {
  if (leaf.device() != device) return stage;
  const int64_t owner =
      parameter == nullptr ? run.first_on_device[stage] : parameter->stages.front();
  TORCH_CHECK(owner <= stage, "stage ", stage, " uses the parameter ",
              text::in_quotes(parameter == nullptr ? "" : parameter->name), " of stage ", owner,
              " without having registered it; register it in the first layer that uses it "
              "(register_parameter) and let the later one use it without, so that the order of its "
              "gradients is fixed and parameters() lists it once");
  return owner;
}

}  // namespace gpipe::internal
