// Chapter and Answer: the parts that all programs of docs/guide share.
//
// Each program runs the code of some chapters and computes the answers to their problems. With
// --check it does all of that, as a test. With numbers ("3.1") it prints those answers.
//
// The lines between `// [name]` and `// [/name]` in a program stand in a chapter word for word:
// tools/docs/check_blocks.py compares them.
#ifndef GPIPE_GUIDE_GUIDE_H_
#define GPIPE_GUIDE_GUIDE_H_

#include <functional>
#include <iosfwd>
#include <string>

namespace guide {

// The code of a chapter. Made as a global variable. An exception from it fails the test.
//
// Example:
//   const guide::Chapter kFirst("2", [] { ... guide::expect(loss < 0.1, "it has learned"); });
struct Chapter {
  Chapter(const std::string& number, std::function<void()> run);
};

// Prints the answer of a problem. Made as a global variable.
//
// Measured answers take seconds and need an idle machine, so --check leaves them out.
struct Answer {
  enum class Kind : bool { kComputed, kMeasured };
  Answer(const std::string& number, std::function<void(std::ostream& out)> print,
         Kind kind = Kind::kComputed);
};

// Throws std::logic_error with `what` if it does not hold.
void expect(bool holds, const std::string& what);

// The message of what `call` throws, without LibTorch's stack; throws std::logic_error if it throws
// nothing.
std::string message_of(const std::function<void()>& call);

}  // namespace guide

#endif  // GPIPE_GUIDE_GUIDE_H_
