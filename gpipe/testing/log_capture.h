// LogCapture: collects the warnings that are logged while it lives.
#ifndef GPIPE_TESTING_LOG_CAPTURE_H_
#define GPIPE_TESTING_LOG_CAPTURE_H_

#include <memory>
#include <string>
#include <vector>

namespace gpipe::testing {

// Thread-safety: any thread may log, and call warnings().
//
// Example:
//   const LogCapture log;
//   train(pipe);
//   EXPECT_THAT(log.warnings(), ElementsAre(HasSubstr("without graphs")));
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // The texts of the warnings, in order.
  std::vector<std::string> warnings() const;

 private:
  class Sink;

  std::unique_ptr<Sink> sink_;
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_LOG_CAPTURE_H_
