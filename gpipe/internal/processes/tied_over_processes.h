// TiedOverProcesses: the copies of tied parameters in several processes, kept equal to what their
// owners have.
#ifndef GPIPE_INTERNAL_PROCESSES_TIED_OVER_PROCESSES_H_
#define GPIPE_INTERNAL_PROCESSES_TIED_OVER_PROCESSES_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/internal/processes/stage_map.h"
#include "gpipe/internal/processes/tied_parameters.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// Thread-safety: none; the calls of a pipeline follow one another.
class TiedOverProcesses {
 public:
  // `world` and `stage_map` are those of this process; `stages` is the number of stages in all.
  // `device`: the device of the stages of this process.
  TiedOverProcesses(std::vector<TiedParameter> parameters, const StageMap& stage_map, size_t stages,
                    World world, c10::Device device);

  const std::vector<TiedParameter>& parameters() const { return parameters_; }
  const std::vector<TiedEdge>& edges() const { return edges_; }

  // [parameter] '1' if this process owns the parameter and has never shared it, or may have changed
  // it since; '0' otherwise. LibTorch's SGD changes no version counter, so a parameter that has got
  // a gradient may have changed. Other changes without a new version are not seen.
  std::string changed() const;
  // [parameter] '1' if the parameter requires a gradient in this process, '0' if it is frozen, '-'
  // if it is not in this process.
  std::string trained() const;
  // Throws FoundByAll for a parameter that its owner trains and that a process with a copy has
  // frozen: the owner would get only a part of its gradient. (If only the owner has frozen a
  // parameter, it gets no gradient.) `trained`: the results of trained() of all processes, by rank.
  void check_trained(const std::vector<std::string>& trained) const;
  // Called when a run of any pipeline of this process may add to gradients, because two pipelines
  // may have the same layers.
  static void note_gradients();
  // Called after a run. Throws c10::Error if users' code has added to the .grad of a copy: the
  // owner does not get that gradient, so it is dropped. Unless the run `records`, it also throws if
  // layers of this process have changed a parameter, because its copies have the old values. (If
  // the run records, ModelState::check_parameters reports that.)
  void check_run(bool records) const;
  // Gives the owners' values of the changed parameters to the copies, in each replica. `changed`:
  // [parameter], the same in all processes. Called within in_call(), by all processes.
  //
  // A failure elsewhere may end share() in one process and not in another. So the parameters count
  // as shared only after note_shared(), which follows a later exchange of the same call.
  void share(const std::string& changed);
  void note_shared() noexcept;

 private:
  struct Shared {
    int64_t version = -1;
    const void* memory = nullptr;
    bool has_arrived = false;  // whether the values are in all processes
  };
  Shared now(const TiedParameter& parameter) const;

  std::vector<TiedParameter> parameters_;
  std::vector<TiedEdge> edges_;
  World world_;
  c10::Device device_;
  // [parameter] The processes of a replica that have the parameter, ascending; the owner comes
  // first.
  std::vector<std::vector<int64_t>> processes_;
  std::vector<Shared> shared_;  // [parameter] the values that were shared last
  bool had_gradients_ = false;  // whether a parameter had a gradient at the last share()
  uint64_t runs_ = 0;           // the runs noted by note_gradients() at the last share()
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_TIED_OVER_PROCESSES_H_
