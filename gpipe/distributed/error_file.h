// ErrorFile: the reason why this process failed, where torchrun looks for it.
//
// torchrun names a file for each process (TORCHELASTIC_ERROR_FILE). What it finds there it prints
// in its summary; otherwise that has the exit code only.
#ifndef GPIPE_DISTRIBUTED_ERROR_FILE_H_
#define GPIPE_DISTRIBUTED_ERROR_FILE_H_

#include <string>
#include <utility>

namespace gpipe::distributed {

// Thread-safety: one thread at a time.
class ErrorFile {
 public:
  // Empty: there is none, and all is without effect.
  explicit ErrorFile(std::string path) : path_(std::move(path)) {}

  // As torch.distributed.elastic's ErrorHandler writes it: the text twice, as message and as what
  // is printed, and the time in seconds. Whole or not at all; a disk that is full is no
  // second failure.
  void write(const std::string& text) noexcept;
  // The process has got over it.
  void forget() noexcept;

 private:
  std::string path_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_ERROR_FILE_H_
