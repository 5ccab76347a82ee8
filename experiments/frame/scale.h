// Scale: the --scale flag of every experiment.
#ifndef GPIPE_EXPERIMENTS_FRAME_SCALE_H_
#define GPIPE_EXPERIMENTS_FRAME_SCALE_H_

#include <string>

namespace gpipe::experiments {

enum class Scale {
  kSmoke,  // a minute or less for each variant, on two cores
  kSmall,  // some minutes
  kFull,   // the published configuration
};

// Throws std::invalid_argument unless `text` is smoke, small or full.
Scale parse_scale(const std::string& text);
std::string to_text(Scale scale);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_SCALE_H_
