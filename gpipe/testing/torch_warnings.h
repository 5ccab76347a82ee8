// TorchWarnings: collects LibTorch's warnings on this thread, instead of writing them to standard
// error.
#ifndef GPIPE_TESTING_TORCH_WARNINGS_H_
#define GPIPE_TESTING_TORCH_WARNINGS_H_

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace gpipe::testing {

class TorchWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;  // in order

 private:
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_TORCH_WARNINGS_H_
