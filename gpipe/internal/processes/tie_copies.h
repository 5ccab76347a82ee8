// TieCopies: the copies of tied parameters, kept equal to what their owners have.
#ifndef GPIPE_INTERNAL_PROCESSES_TIE_COPIES_H_
#define GPIPE_INTERNAL_PROCESSES_TIE_COPIES_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/internal/processes/residence.h"
#include "gpipe/internal/processes/ties.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// Thread-safety: none; the calls of a pipeline follow one another.
class TieCopies {
 public:
  // `world` and `residence`: of this process, with so many stages in all. `device`: of the stages
  // of this process.
  TieCopies(std::vector<Tie> ties, const Residence& residence, size_t stages, World world,
            c10::Device device);

  const std::vector<Tie>& ties() const { return ties_; }
  const std::vector<TieEdge>& edges() const { return edges_; }

  // [tie] '1' where this process owns it and may have changed it since it was shared, or never
  // shared it; '0' for the others. LibTorch's SGD changes no version counter, so one that has got a
  // gradient may have changed. Other changes that leave version counters as they are are not seen.
  std::string changed() const;
  // [tie] '1' where it requires a gradient in this process, '0' where it is frozen, '-' where it is
  // not here.
  std::string trained() const;
  // Throws FoundByAll for one that its owner trains, and a process with a copy has frozen: the
  // owner would get a part of its gradient. (What the owner alone has frozen gets none.) `trained`:
  // of all processes, by rank.
  void check_trained(const std::vector<std::string>& trained) const;
  // Called when a run may add to gradients.
  void note_gradients() { has_gradients_ = true; }
  // Called after a run. Throws c10::Error if users' code has added to the .grad of a copy, which
  // the owner does not get: it is dropped. And, unless the run `records`
  // (ModelState::check_parameters says so then), if layers here have changed a parameter, whose
  // copies have the values of before.
  void check_run(bool records) const;
  // Gives the owners' values of these to the copies, in each replica. `changed`: [tie], the same in
  // all processes. Called within in_call(), by all processes.
  //
  // A failure elsewhere may end it in one process and not in another, so they count as shared only
  // after note_shared(), which follows a later exchange of the same call.
  void share(const std::string& changed);
  void note_shared() noexcept;

 private:
  struct Shared {
    int64_t version = -1;
    const void* memory = nullptr;
    bool has_arrived = false;  // in all processes
  };
  Shared now(const Tie& tie) const;

  std::vector<Tie> ties_;
  std::vector<TieEdge> edges_;
  World world_;
  c10::Device device_;
  // [tie] Of a replica, ascending; the owner is first.
  std::vector<std::vector<int64_t>> processes_;
  std::vector<Shared> shared_;  // [tie] what was shared last
  bool has_gradients_ = false;  // since a share() at which there were none
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_TIE_COPIES_H_
