// DraftFolder: a folder of files that takes its place when it is whole.
#ifndef GPIPE_SAVING_DRAFT_FOLDER_H_
#define GPIPE_SAVING_DRAFT_FOLDER_H_

#include <sys/stat.h>

#include <functional>
#include <string>
#include <vector>

namespace gpipe::internal {

// Whether there is an old folder at `place`, of files that are known. Throws what a DraftFolder
// throws for this place, whatever the disk has room for. Writes nothing.
bool check_place(const std::string& place,
                 const std::function<bool(const std::string& name)>& is_known);

// A new folder PLACE.draft-NUMBER beside `place`, into which `files` are to be written. A link to a
// folder is followed.
//
// Guarantees: whoever looks at `place`, also after a crash in the middle, sees the old folder or
// the new one, with all files, never anything between; what commit() has put there is on the disk.
// Each draft is its writer's alone: of several, also on other machines, the last one stays. A draft
// that is not committed is removed; one that a crash has left is removed by the next draft for the
// same place, on file systems with locks. The new folder and files have the owners and access
// rights of the old ones, and until commit() nobody else can read them.
//
// Throws std::runtime_error with the path and the reason where the disk or the rights refuse
// something, c10::ValueError if `place` is something else than an old folder with such files only,
// the current folder, or a mount point: nothing of somebody else's is overwritten or removed.
class DraftFolder {
 public:
  // `is_old`: which other files an old folder may have, and loses. Null: none.
  DraftFolder(const std::string& place, std::vector<std::string> files,
              std::function<bool(const std::string& name)> is_old = nullptr);
  ~DraftFolder();
  DraftFolder(const DraftFolder&) = delete;
  DraftFolder& operator=(const DraftFolder&) = delete;

  // The path of one of the files, to be written. Whoever writes it also brings it to the disk.
  std::string file(const std::string& name) const;
  // Where they are until commit().
  const std::string& path() const { return draft_; }

  // Call once, when all files are there.
  void commit();

 private:
  bool is_file(const std::string& name) const;
  // Of this folder or of an old one.
  bool is_known(const std::string& name) const;
  bool has_old_one() const;
  void make();
  void remove_left_ones() const;
  void keep_access() const;

  std::string place_, draft_;
  std::vector<std::string> files_;
  std::function<bool(const std::string& name)> is_old_;
  int descriptor_ = -1;  // the draft, locked where there are locks
  mode_t rights_ = 0;    // those of a new folder
};

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_DRAFT_FOLDER_H_
