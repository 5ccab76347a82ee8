// write_trace: writes the timeline of a variant's last whole step, for --trace.
#ifndef GPIPE_EXPERIMENTS_FRAME_TRACE_H_
#define GPIPE_EXPERIMENTS_FRAME_TRACE_H_

#include <optional>
#include <ostream>
#include <string>

#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/timeline.h"

namespace gpipe::experiments {

// The trace file of one of several variants. The variant's name stands before the file's ending, or
// at the end if the file has none: "t.json" and "pipeline-2" give "t.pipeline-2.json".
std::string trace_file(const std::string& path, const std::string& variant);

// Writes the timeline's last step and, if it is whole, its simulation (simulate_again): as a
// picture, one below the other, if the file ends in ".svg", otherwise as a Chrome trace. Writes to
// `out` (unless null) where the step's time went. Throws std::runtime_error if there was no step or
// the file cannot be written.
void write_trace(const std::string& path, const std::string& title, const Timeline& timeline,
                 const std::optional<Routes>& routes, std::ostream* out);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_TRACE_H_
