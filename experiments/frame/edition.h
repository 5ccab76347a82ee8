// Edition: the --edition flag of experiments whose published table has an older edition.
//
// Link it only into these experiments: the flag appears in every program that links it.
#ifndef GPIPE_EXPERIMENTS_FRAME_EDITION_H_
#define GPIPE_EXPERIMENTS_FRAME_EDITION_H_

#include <string>

namespace gpipe::experiments {

enum class Edition {
  kCurrent,  // torchgpipe's documentation, v0.0.5, November 2019
  kJune2019  // torchgpipe's README of 2019-06-20, with older models
};

// Reads "current" or "2019-06". Throws std::invalid_argument for another text.
Edition parse_edition(const std::string& text);
// The edition as text: "", as in ReportSource, or "2019-06".
std::string to_text(Edition edition);

// The value of --edition.
Edition edition_flag();

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_EDITION_H_
