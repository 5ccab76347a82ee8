// DraftFolder: a folder of files that takes its place when it is whole.
#ifndef GPIPE_SAVING_DRAFT_FOLDER_H_
#define GPIPE_SAVING_DRAFT_FOLDER_H_

#include <string>
#include <vector>

namespace gpipe::internal {

// A new folder beside `place`, into which `files` are to be written.
//
// Guarantees: whoever looks at `place`, also after a crash in the middle, sees the old folder or
// the new one, with all files, never anything between; what commit() has put there is on the disk.
// A draft that is not committed is removed. After a crash a folder PLACE.draft-NUMBER may be left,
// which nobody reads.
//
// Throws std::runtime_error with the path and the reason where the disk or the rights refuse
// something, c10::ValueError if `place` is something else than an old folder with such files only:
// nothing of somebody else's is overwritten.
class DraftFolder {
 public:
  DraftFolder(std::string place, std::vector<std::string> files);
  ~DraftFolder();
  DraftFolder(const DraftFolder&) = delete;
  DraftFolder& operator=(const DraftFolder&) = delete;

  // The path of one of the files, to be written. Whoever writes it also brings it to the disk.
  std::string file(const std::string& name) const;

  // Call once, when all files are there.
  void commit();

 private:
  void remove(const std::string& folder) const;

  std::string place_, draft_;
  std::vector<std::string> files_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_SAVING_DRAFT_FOLDER_H_
