// Where an experiment writes: `bazel run` starts programs inside its own tree, so that a relative
// path would end there; it says in BUILD_WORKING_DIRECTORY where the user stood.

#ifndef GPIPE_EXPERIMENTS_COMMON_OUTPUT_PATH_H_
#define GPIPE_EXPERIMENTS_COMMON_OUTPUT_PATH_H_

#include <string>

namespace gpipe::experiments {

// `path` itself if it is absolute or empty, or if the program was not started by `bazel run`;
// otherwise `path` below BUILD_WORKING_DIRECTORY. Creates nothing.
std::string output_path(const std::string& path);

// Replaces the file at `path` by `text` as a whole: a reader, or a crash in the middle, sees the
// old or the new file, never half of one. Creates missing folders.
// Throws std::runtime_error that names the path and the reason.
void write_file_atomically(const std::string& path, const std::string& text);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_OUTPUT_PATH_H_
