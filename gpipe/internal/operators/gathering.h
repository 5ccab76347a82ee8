// GatheringScope: tells that operators on this thread gather moments for deferred running
// statistics, and belong to no layer. Code that counts what a forward costs asks for it.
//
// CpuGatheringScope: gathers moments of meta tensors with the tensors that the CPU makes for it.
#ifndef GPIPE_INTERNAL_OPERATORS_GATHERING_H_
#define GPIPE_INTERNAL_OPERATORS_GATHERING_H_

namespace gpipe::internal {

class GatheringScope {
 public:
  GatheringScope();
  ~GatheringScope();
  GatheringScope(const GatheringScope&) = delete;
  GatheringScope& operator=(const GatheringScope&) = delete;

  // Whether a GatheringScope lives on this thread.
  static bool is_open();

 private:
  bool former_;
};

// While it lives, moments of meta tensors are gathered as on the CPU, on all threads. Otherwise
// they are gathered as on accelerators, which copy the input in double.
//
// Thread-safety: make one at a time.
class CpuGatheringScope {
 public:
  CpuGatheringScope();
  ~CpuGatheringScope();
  CpuGatheringScope(const CpuGatheringScope&) = delete;
  CpuGatheringScope& operator=(const CpuGatheringScope&) = delete;

  static bool is_open();
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_GATHERING_H_
