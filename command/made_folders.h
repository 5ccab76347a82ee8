// make_folder, tell_made_folders, remove_made_folders: a command that ends with wrong usage leaves
// no folder behind that it has made to see whether it could.
#ifndef GPIPE_COMMAND_MADE_FOLDERS_H_
#define GPIPE_COMMAND_MADE_FOLDERS_H_

#include <filesystem>
#include <system_error>

namespace gpipe::command {

// Any thread may call these functions.

// Creates a folder and the missing folders above it, and notes which it has created. Does nothing
// if the folder exists.
void make_folder(const std::filesystem::path& folder, std::error_code& error);

// Names the folders that make_folder() has created in this process on stderr, because a name may be
// misspelled, and forgets them.
void tell_made_folders();

// Removes the folders that make_folder() has created, if they are not forgotten and still empty.
void remove_made_folders();

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_MADE_FOLDERS_H_
