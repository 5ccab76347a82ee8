// Files: the files that a command is told to read and write.
#ifndef GPIPE_COMMAND_FILES_H_
#define GPIPE_COMMAND_FILES_H_

#include <string>

namespace gpipe::command {

// A path as the user means it. `bazel run` starts programs inside its own tree and says in
// BUILD_WORKING_DIRECTORY where the user was: relative paths start there. Absolute and empty ones
// stay as they are. Creates nothing.
std::string user_path(const std::string& path);

// What is in the file at `path`; a pipe is read to its end. Throws std::runtime_error, "cannot read
// `path`: it is a folder", for what cannot be read.
std::string read_file(const std::string& path);

// The same of a file that somebody has given to be read: throws std::invalid_argument, also for an
// empty one.
std::string read_given_file(const std::string& path);

// Whether both paths lead to one file, by links too, also where it is not there yet. What is not a
// file (/dev/null, a terminal, a pipe) takes any number of results.
bool same_file(const std::string& a, const std::string& b);

// Replaces the file at `path` by `text` as a whole: a reader, or a crash in the middle, sees the
// old or the new file, never half of one. If `path` is a symbolic link, the file that it leads to
// is replaced. Anything that is not a file (/dev/stdout, a pipe) is written to directly. Creates
// missing folders, and says so on stderr. Throws std::runtime_error that names the path and the
// reason (a full disk, for one), with the old file unchanged and nothing left behind.
void write_file_atomically(const std::string& path, const std::string& text);

// Writes a command's result like that, and says so on stderr. Does nothing for an empty path.
void write_result(const std::string& path, const std::string& text);

// Find out before the work whether write_file_atomically() will be able to write the file, or files
// in the folder; create missing folders. Throw std::invalid_argument with `flag`, the path and the
// reason.
void check_writable_file(const std::string& flag, const std::string& path);
void check_writable_folder(const std::string& flag, const std::string& path);

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_FILES_H_
