// files: reads and writes the files that a command's user names.
#ifndef GPIPE_COMMAND_FILES_H_
#define GPIPE_COMMAND_FILES_H_

#include <string>

namespace gpipe::command {

// Resolves a path relative to the user's working directory. `bazel run` starts programs inside its
// own tree and passes the user's directory in BUILD_WORKING_DIRECTORY. Absolute and empty paths
// stay as they are. Creates nothing.
std::string user_path(const std::string& path);

// Returns the contents of the file at `path`; a pipe is read to its end. Throws std::runtime_error,
// "cannot read `path`: it is a folder", if it cannot be read.
std::string read_file(const std::string& path);

// Does what read_file() does, for a file that a user has named as input. Throws
// std::invalid_argument, also for an empty file.
std::string read_given_file(const std::string& path);

// Whether both paths lead to one file, also through links, and also if it does not exist yet. False
// for paths that are not files (/dev/null, a terminal, a pipe): they take any number of results.
bool same_file(const std::string& a, const std::string& b);

// Replaces the file at `path` by `text` as a whole: a reader, or a crash in the middle, sees the
// old or the new file, never half of one. If `path` is a symbolic link, the file that it leads to
// is replaced. A path that is not a file (/dev/stdout, a pipe) is written to directly. Creates
// missing folders, and says so on stderr. Throws std::runtime_error with the path and the reason
// (for example a full disk); the old file is then unchanged and nothing is left behind.
void write_file_atomically(const std::string& path, const std::string& text);

// Writes a command's result with write_file_atomically(), and says so on stderr. Does nothing for
// an empty path.
void write_result(const std::string& path, const std::string& text);

// These functions are called before the work. They check that write_file_atomically() will be able
// to write the file, or files in the folder, and create missing folders. Otherwise they throw
// std::invalid_argument with `flag`, the path and the reason.
void check_writable_file(const std::string& flag, const std::string& path);
void check_writable_folder(const std::string& flag, const std::string& path);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_FILES_H_
