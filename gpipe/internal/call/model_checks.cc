#include "gpipe/internal/call/model_checks.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_join.h"
#include "gpipe/internal/model/registered.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/value.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

constexpr char kBalanceHint[] =
    "; gpipe::balance::balance_by_time(partitions, model, sample) and balance_by_size find a "
    "good one (#include \"balance/balance.h\")";

// No machine has more threads for a stage. More are refused, because OpenMP ends the process if it
// cannot create the threads.
constexpr int64_t kMostThreads = 1024;

void check_mode(Checkpoint mode, const char* what) {
  TORCH_CHECK_VALUE(
      mode == Checkpoint::kAlways || mode == Checkpoint::kExceptLast || mode == Checkpoint::kNever,
      what, " must be one of kAlways, kExceptLast and kNever, got the number ",
      static_cast<int>(mode));
}

// Which process has which memory, because two tensors over the same memory are tied, too.
class MemoryOwners {
 public:
  // Throws if another process has some of the tensor's memory.
  void add(const at::Tensor& tensor, const std::string& name, int64_t process) {
    const c10::StorageImpl* const storage = storage_of(tensor);
    if (storage == nullptr || tensor.numel() == 0) return;
    const auto size = static_cast<int64_t>(tensor.element_size());
    const MemoryRange range = memory_range(tensor);
    const Owner own{name, process, range.begin * size, range.end * size};
    std::vector<Owner>& owners = owners_[storage];
    for (const Owner& other : owners) {
      TORCH_CHECK_VALUE(
          other.process == process || other.end <= own.begin || own.end <= other.begin,
          text::in_quotes(name), " in process ", process, " has the same memory as ",
          text::in_quotes(other.name), " in process ", other.process,
          "; put both partitions into one process (Placement::processes), or give "
          "each layer a tensor of its own (clone())");
    }
    owners.push_back(own);
  }

 private:
  struct Owner {
    std::string name;
    int64_t process;
    int64_t begin;  // in bytes
    int64_t end;
  };
  std::unordered_map<const c10::StorageImpl*, std::vector<Owner>> owners_;
};

}  // namespace

std::string list_text(const std::vector<int64_t>& values) {
  return "{" + absl::StrJoin(values, ", ") + "}";
}

void check_options(const GPipeOptions& options) {
  TORCH_CHECK_VALUE(options.chunks() > 0, "chunks must be at least 1, got ", options.chunks());
  TORCH_CHECK_VALUE(
      options.cpu_threads_per_stage() >= 0 && options.cpu_threads_per_stage() <= kMostThreads,
      "cpu_threads_per_stage must be 0 (an equal share) or from 1 to ", kMostThreads, ", got ",
      options.cpu_threads_per_stage());
  std::vector<int64_t> shared = options.shared_inputs();
  std::sort(shared.begin(), shared.end());
  TORCH_CHECK_VALUE(shared.empty() || shared.front() >= 0,
                    "shared_inputs are numbers of inputs, counted from 0, got ",
                    at::IntArrayRef(options.shared_inputs()));
  TORCH_CHECK_VALUE(std::adjacent_find(shared.begin(), shared.end()) == shared.end(),
                    "shared_inputs names an input twice, got ",
                    at::IntArrayRef(options.shared_inputs()));
  check_mode(options.checkpoint(), "checkpoint");
  const std::vector<Checkpoint>& modes = options.partition_checkpoints();
  TORCH_CHECK_VALUE(modes.empty() || modes.size() == options.balance().size(),
                    "partition_checkpoints has ", modes.size(), " modes, but the balance has ",
                    options.balance().size(),
                    " partitions; give one mode for each, or none to let checkpoint hold for all");
  for (Checkpoint mode : modes) check_mode(mode, "each of partition_checkpoints");
  TORCH_CHECK_VALUE(options.groups() >= 0, "groups must be 0 (none) or more, got ",
                    options.groups());
  TORCH_CHECK_VALUE(options.groups() == 0 || options.chunks() % options.groups() == 0, "groups(",
                    options.groups(), ") must divide chunks(", options.chunks(),
                    "), so that each group has as many micro-batches");
  if (!options.placement()) return;
  TORCH_CHECK_VALUE(options.placement()->stages() == static_cast<int64_t>(options.balance().size()),
                    "the placement is of ", options.placement()->stages(),
                    " stages, but the balance has ", options.balance().size(),
                    " partitions; each partition is a stage");
  TORCH_CHECK_VALUE(
      options.world().processes_each() > 1 || options.placement()->process_of_worker().empty(),
      "the placement names processes, and all workers are in this one; leave out "
      "Placement::processes");
}

void check_replicas(const GPipeOptions& options) {
  const int64_t replicas = options.world().replicas();
  if (replicas == 1) return;
  TORCH_CHECK_VALUE(options.chunks() % replicas == 0, "chunks(", options.chunks(),
                    ") must be a multiple of the ", replicas,
                    " replicas: it is how many micro-batches the mini-batch of all of them has");
  if (options.groups() == 0) return;
  const int64_t each = options.groups() / replicas;
  TORCH_CHECK_VALUE(options.groups() % replicas == 0 && (each & (each - 1)) == 0, "groups(",
                    options.groups(), ") must be 1, 2, 4, 8, ... for each of the ", replicas,
                    " replicas, so that each has a part of the tree in which groups are added up");
}

void check_no_running_statistics(
    const torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>& layers) {
  for (size_t k = 0; k < layers.size(); ++k) {
    layers[k].value()->apply(
        [&](const std::string& name, torch::nn::Module& module) {
          if (!module.is_training()) return;
          const auto buffers = module.named_buffers(/*recurse=*/false);
          const at::Tensor* const mean = buffers.find("running_mean");
          TORCH_CHECK_VALUE(
              mean == nullptr || !mean->defined(), "layer ", k, " (",
              text::in_quotes(layers[k].key()),
              name.empty() ? ")" : "), module " + text::in_quotes(name) + ",",
              " keeps running statistics, and each replica would have those of its own "
              "rows; give GPipeOptions::deferred_batch_norm(true), use a norm without (LayerNorm, "
              "GroupNorm, or track_running_stats(false)), or call eval() on it");
        },
        std::string());
  }
}

void check_balance(const std::vector<int64_t>& balance, size_t layers) {
  TORCH_CHECK_VALUE(!balance.empty() || layers == 0, "the balance is empty, but the model has ",
                    layers, " layers: say how many each partition gets", kBalanceHint);
  int64_t sum = 0;
  for (size_t j = 0; j < balance.size(); ++j) {
    const int64_t count = balance[j];
    TORCH_CHECK_VALUE(count > 0, "every partition needs at least one layer, but partition ", j,
                      " of the balance ", list_text(balance), " has ", count,
                      ": leave it out, or add a layer that passes everything on "
                      "(torch::nn::Identity) for it to have",
                      kBalanceHint);
    const int64_t room = std::numeric_limits<int64_t>::max() - sum;
    TORCH_CHECK_VALUE(count <= room, "the balance ", list_text(balance),
                      " sums up to more than 2^63 - 1, but the model has ", layers, " layers",
                      kBalanceHint);
    sum += count;
  }
  TORCH_CHECK_VALUE(sum == static_cast<int64_t>(layers), "the balance ", list_text(balance),
                    " sums up to ", sum, ", but the model has ", layers, " layers", kBalanceHint);
}

void check_layers(const torch::nn::Sequential& module) {
  check_registered(module);
  std::unordered_map<const torch::nn::Module*, std::string> seen;
  for (const auto& child : module->named_children()) {
    const auto [entry, fresh] = seen.emplace(child.value().get(), child.key());
    TORCH_CHECK_VALUE(
        fresh, "the layers ", text::in_quotes(entry->second), " and ", text::in_quotes(child.key()),
        " of the model are the same object; a layer can stand only once in a pipeline");
  }
}

void check_arguments(const torch::nn::Sequential& module, const std::vector<int64_t>& balance) {
  size_t next_cut = 0;
  int64_t partition = 0;
  size_t index = 0;
  const auto children = module->named_children();
  for (auto any = module->begin(); any != module->end(); ++any, ++index) {
    const bool begins = index == next_cut;
    const std::string name =
        "layer " + std::to_string(index) + " (" + text::in_quotes(children[index].key()) + ")";
    torch::nn::AnyModule layer = *any;  // the same module, but not const
    check_argument(layer, name, begins ? partition : -1);
    if (begins) next_cut += balance[partition++];
  }
}

void check_sharing(const torch::nn::Sequential& module, const std::vector<int64_t>& balance,
                   const std::vector<c10::Device>& devices, const StageMap* stage_map) {
  const auto layers = module->named_children();
  std::unordered_map<const c10::TensorImpl*, std::pair<size_t, std::string>> owner;
  MemoryOwners memory;
  size_t layer = 0;
  for (size_t j = 0; j < balance.size(); ++j) {
    for (int64_t k = 0; k < balance[j]; ++k, ++layer) {
      auto check = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
        if (!tensor.defined()) return;
        const char* const what = is_buffer ? "buffer" : "parameter";
        const std::string full = text::shown(layers[layer].key() + "." + name);
        const auto [entry, fresh] =
            owner.emplace(tensor.unsafeGetTensorImpl(), std::make_pair(j, full));
        TORCH_CHECK_VALUE(fresh || devices[entry->second.first] == devices[j], "the ", what, " '",
                          entry->second.second, "' of partition ", entry->second.first, " on ",
                          devices[entry->second.first], " is also '", full, "' of partition ", j,
                          " on ", devices[j],
                          "; a tensor shared between partitions needs both on the same device",
                          is_buffer ? ""
                                    : ", unless the later layer uses it without registering it, as "
                                      "a gpipe::TiedLayer (tied/tied_layer.h) does");
        if (stage_map == nullptr) return;
        const int64_t here = stage_map->process_of_stage(static_cast<int64_t>(j));
        if (fresh) memory.add(tensor, full, here);
        const int64_t there =
            stage_map->process_of_stage(static_cast<int64_t>(entry->second.first));
        // A parameter may be tied across processes, because each process has a copy of it.
        TORCH_CHECK_VALUE(here == there || !is_buffer, "the ", what, " '", entry->second.second,
                          "' of partition ", entry->second.first, " in process ", there,
                          " is also '", full, "' of partition ", j, " in process ", here,
                          "; put both partitions into one process (Placement::processes), or give "
                          "each layer a tensor of its own");
      };
      for (const auto& p : layers[layer].value()->named_parameters())
        check(p.key(), p.value(), /*is_buffer=*/false);
      for (const auto& b : layers[layer].value()->named_buffers())
        check(b.key(), b.value(), /*is_buffer=*/true);
    }
  }
}

}  // namespace gpipe::internal
