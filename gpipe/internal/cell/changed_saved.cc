#include "gpipe/internal/cell/changed_saved.h"

#include <c10/util/Exception.h>

#include <string>
#include <typeinfo>

#include "text/shown.h"

namespace gpipe::internal {

void rethrow_changed(const Layer& layer, bool waited) {
  try {
    throw;
  } catch (const c10::Error& error) {
    std::string names;
    for (const auto& item : layer.module.ptr()->named_buffers()) {
      names += (names.empty() ? "" : ", ") + text::in_quotes(layer.name + "." + item.key());
    }
    const std::string what = error.what_without_backtrace();
    if (names.empty() || typeid(error) != typeid(c10::Error) ||
        what.find("modified by an inplace operation") == std::string::npos) {
      throw;
    }
    c10::Error longer(error);  // the user may keep the error itself
    longer.add_context(
        "the tensor may be a buffer of this layer (" + names +
        ") that another micro-batch's forward has changed since: let the layer compute with a "
        "clone() of it, or use Checkpoint::kAlways for this partition" +
        (waited ? " and a schedule with whole backwards, such as 1f1b" : ""));
    throw c10::Error(std::move(longer));
  }
}

}  // namespace gpipe::internal
