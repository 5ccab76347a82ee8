// GatheringScope: tells that operators on this thread gather moments for deferred running
// statistics, and belong to no layer. Code that counts what a forward costs asks for it.
#ifndef GPIPE_INTERNAL_OPERATORS_GATHERING_H_
#define GPIPE_INTERNAL_OPERATORS_GATHERING_H_

namespace gpipe::internal {

class GatheringScope {
 public:
  GatheringScope();
  ~GatheringScope();
  GatheringScope(const GatheringScope&) = delete;
  GatheringScope& operator=(const GatheringScope&) = delete;

  // Whether one lives on this thread.
  static bool is_open();

 private:
  bool former_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_GATHERING_H_
