// DraftFolder: a folder of files that is moved to its place when it is complete.
#ifndef GPIPE_SAVING_DRAFT_FOLDER_H_
#define GPIPE_SAVING_DRAFT_FOLDER_H_

#include <sys/stat.h>

#include <functional>
#include <string>
#include <vector>

namespace gpipe::internal {

// Whether there is an old folder at `place` that has only files for which `is_known` is true.
// Throws what a DraftFolder throws for this place, except for a lack of room on the disk. Writes
// nothing.
bool check_place(const std::string& place,
                 const std::function<bool(const std::string& name)>& is_known);

// Throws std::runtime_error unless the file system can exchange a folder at `place` for a new one
// at once, as DraftFolder::commit() does. Tries it with two empty drafts. Where these cannot be
// made (a full disk, no right to write), nothing is known, and it does not throw: a save will.
void check_exchange(const std::string& place,
                    const std::function<bool(const std::string& name)>& is_known);

// A new folder PLACE.draft-NUMBER beside `place`, into which `files` are to be written. A link to a
// folder is followed.
//
// Guarantees: a reader of `place`, even after a crash in the middle, sees the old folder or the new
// one, with all files, and never a mixture. After commit() the new folder is on the disk. Each
// draft belongs to its writer alone: if there are several writers, even on several machines, the
// folder of the last one stays. A draft that is not committed is removed. A draft that a crash has
// left is removed by the next draft for the same place, on file systems with locks. The new folder
// and files have the owners and access rights of the old ones, and until commit() no other user can
// read them.
//
// Throws std::runtime_error with the path and the reason if the disk or the rights refuse
// something. Throws c10::ValueError if `place` is the current folder, a mount point, or anything
// else than an old folder with such files only: it never overwrites or removes other people's
// files.
class DraftFolder {
 public:
  // `is_old`: says which other files an old folder may have; they are removed with it. Null: it may
  // have none.
  DraftFolder(const std::string& place, std::vector<std::string> files,
              std::function<bool(const std::string& name)> is_old = nullptr);
  ~DraftFolder();
  DraftFolder(const DraftFolder&) = delete;
  DraftFolder& operator=(const DraftFolder&) = delete;

  // The path of one of the files, to be written. The code that writes it also syncs it to the disk.
  std::string file(const std::string& name) const;
  // The folder of the files until commit().
  const std::string& path() const { return draft_; }

  // Call it once, when all files are there.
  void commit();

 private:
  bool is_file(const std::string& name) const;
  // Whether this folder or an old one may have this file.
  bool is_known(const std::string& name) const;
  bool has_old_one() const;
  void make();
  void remove_left_ones() const;
  void keep_access() const;

  std::string place_, draft_;
  std::vector<std::string> files_;
  std::function<bool(const std::string& name)> is_old_;
  int descriptor_ = -1;  // the open draft folder, which is locked if the file system has locks
  mode_t rights_ = 0;    // the access rights of a new folder
};

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_DRAFT_FOLDER_H_
