// Context: the table of skips, and the observed call, that the skippable layers of a thread use.
#ifndef SKIP_CONTEXT_H_
#define SKIP_CONTEXT_H_

namespace gpipe::skip {
class CallScope;
class Tracker;
}  // namespace gpipe::skip

namespace gpipe::skip::internal {

// A null tracker means the thread's own tracker; a null call means that no call is observed.
struct Context {
  Tracker* tracker = nullptr;
  CallScope* call = nullptr;
};

Context& context();

}  // namespace gpipe::skip::internal

#endif  // SKIP_CONTEXT_H_
