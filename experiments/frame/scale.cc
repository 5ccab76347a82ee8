#include "experiments/frame/scale.h"

#include <stdexcept>

#include "command/wrong_value.h"

namespace gpipe::experiments {

Scale parse_scale(const std::string& text) {
  for (const Scale scale : {Scale::kSmoke, Scale::kSmall, Scale::kFull}) {
    if (text == to_text(scale)) return scale;
  }
  throw command::wrong_value("scale", text, "give smoke, small or full");
}

std::string to_text(Scale scale) {
  switch (scale) {
    case Scale::kSmoke:
      return "smoke";
    case Scale::kSmall:
      return "small";
    case Scale::kFull:
      return "full";
  }
  throw std::invalid_argument("unknown scale");
}

}  // namespace gpipe::experiments
