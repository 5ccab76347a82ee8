// ErrorFile: writes why this process failed into the file in which torchrun looks for the reason.
//
// torchrun names a file for each process (TORCHELASTIC_ERROR_FILE). It prints the file's content
// in its summary; without one the summary has the exit code only.
#ifndef GPIPE_DISTRIBUTED_ERROR_FILE_H_
#define GPIPE_DISTRIBUTED_ERROR_FILE_H_

#include <string>
#include <utility>

namespace gpipe::distributed {

// Thread-safety: one thread at a time.
class ErrorFile {
 public:
  // An empty path: no file, so the functions have no effect.
  explicit ErrorFile(std::string path) : path_(std::move(path)) {}

  // Writes what torch.distributed.elastic's ErrorHandler writes: the text twice, as message and as
  // the call stack that torchrun prints, and the time in seconds. Writes the whole file or nothing;
  // a full disk is ignored.
  void write(const std::string& text) noexcept;
  // Removes the file, when the process has recovered from the failure.
  void forget() noexcept;

 private:
  std::string path_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_ERROR_FILE_H_
