// GPipe: pipeline parallelism for a torch::nn::Sequential.
//
// The model is cut into partitions of consecutive layers, one per device; a mini-batch is cut into
// micro-batches, so that all partitions work at once (Huang et al., "GPipe: Efficient Training of
// Giant Neural Networks using Pipeline Parallelism", 2018). Skip connections between far-apart
// layers are declared with skip/skippable.h and travel straight from one partition to the other.
#ifndef GPIPE_GPIPE_H_
#define GPIPE_GPIPE_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/options.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/world.h"

namespace gpipe {

namespace internal {
class Pipeline;
class Processes;
struct Pass;
enum class ValueKind : uint8_t;
}  // namespace internal

// Gives a parameter or a buffer its first values. `name`: its key in the model ("3.weight").
// `generator` is this tensor's own, so that its values do not depend on where other layers are.
using LayerInit =
    std::function<void(const std::string& name, at::Tensor& tensor, at::Generator generator)>;

// A torch::nn::Sequential that runs as a pipeline.
//
// Requirements: each layer of the Sequential takes and returns one value: a Tensor, a
// std::vector<Tensor>, or a std::tuple of two to four Tensors. The model gives row i of its output
// for row i of its input (except for statistics over the batch). A parameter that several stages
// use is registered in the first of them. Inputs are on the first device, targets on the last.
//
// Guarantees: parameters and layers stay the user's own objects, moved to their devices, under the
// keys that they have in the Sequential. On the CPU, outputs, loss, gradients and buffers are
// bitwise those of the plain model run micro-batch by micro-batch, with the same threads per
// operator, gradients accumulated in the schedule's order, and the pipeline's own random streams;
// docs/guide/17-same-training.md says what that means, and lists the exceptions. What cannot be
// computed exactly is refused. An exception in a layer reaches the caller with stage, micro-batch
// and layer added to its message, and the pipeline remains usable.
//
// Over several processes (GPipeOptions::world) all of them make the same calls, in the same order:
// the constructor, step, evaluate, forward, clip_grad_norm_, parameter_hash and materialize. Inputs
// are needed in the process of the first stage and targets in that of the last; elsewhere they may
// be {}. Results are bitwise those of one process. An error in one process is thrown there as in a
// run of one process, and in the others as gpipe::distributed::DistributedFailure.
//
// Thread-safety: calls from several threads run one after another, also those of other functions
// that take the pipeline (save_checkpoint, load_weights, ZeroOptimizer::step). Not callable from
// inside a layer of a pipeline.
//
// Example:
//   gpipe::GPipe pipe(model, gpipe::GPipeOptions({4, 4}).chunks(8));
//   torch::optim::SGD optimizer(pipe->parameters(), 0.1);
//   auto result = pipe->step({input}, {target}, loss_fn);  // forward, loss and backward, 1F1B
//   optimizer.step();
//   auto output = pipe->forward(input);                    // or like any module:
//   loss(output, target).backward();                       // autograd runs the backward half
class GPipeImpl : public torch::nn::Module {
 public:
  // Throws c10::ValueError for a balance, a number of chunks, a device or shared layers that do not
  // fit, c10::IndexError for too few devices, c10::TypeError for skips that do not pair up and for
  // layers that take several arguments, std::system_error where no thread can be started.
  GPipeImpl(torch::nn::Sequential module, GPipeOptions options);
  ~GPipeImpl() override;

  // (N, ...) -> (N, ...). Throws c10::ValueError if the model takes or gives several values, if an
  // output of several micro-batches does not have their rows, or for more than 2^24 cells (stages x
  // micro-batches); c10::Error for an in-place change that would spoil gradients.
  //
  // A backward from the output runs the backward half. If that keeps the graph (retain_graph),
  // another backward may follow: it adds its gradients, too, and recomputes the checkpointed
  // micro-batches again. A second backward throws c10::Error if the first one did not keep the
  // graph, or has failed. Any backward throws it for create_graph.
  torch::Tensor forward(torch::Tensor input);
  // Like the forward above, for several inputs and outputs, all with the same N. Over several
  // processes the outputs are in the process of the last stage; elsewhere this returns an empty
  // list, and the forward of one input an undefined tensor.
  Tensors forward(Tensors inputs);

  // Runs forward, loss and backward inside the pipeline, adding to the gradients of parameters,
  // inputs and targets. Micro-batches are weighted by their samples, so the loss and its gradients
  // are the mean over the mini-batch even if the last micro-batch is short. For other losses (sums,
  // means over tokens that are not padding) see StepOptions::reduction and weight, and
  // docs/guide/08-losses.md. Throws c10::ValueError if inputs and targets do not fit, if there are
  // no rows, if the loss is not a real scalar or needs no gradient, for a schedule or weights that
  // do not fit, or under torch::NoGradGuard; otherwise as forward. In evaluation mode it logs a
  // warning, once.
  StepResult step(Tensors inputs, Tensors targets, const LossFn& loss_fn,
                  const StepOptions& options = {});

  // Runs forward and loss, pipelined and without gradients: a validation. Its loss is that of a
  // step with the same options. Only the forwards of a schedule run. Nothing is kept for a
  // backward, and each micro-batch's outputs are freed after its loss unless they are to be kept.
  // Like step it leaves the mode as it is: call eval() before, where dropout or batch norms matter.
  // Throws as step, but the loss may need no gradient.
  StepResult evaluate(Tensors inputs, Tensors targets, const LossFn& loss_fn,
                      const StepOptions& options = {});

  // Over all processes: scales the gradients of all parameters so that their norm, taken as that of
  // one vector, is at most `max_norm`; returns the norm before scaling. The result is, bit for bit,
  // that of gpipe::clip_grad_norm_ (gpipe/clip_grad.h) for all parameters, also where they are in
  // several processes.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // Over all processes: divides all gradients by `loss_scale`, which a step multiplied them by
  // (StepOptions::loss_scale), as torch.amp.GradScaler does. Returns whether all of them, in all
  // processes, were finite: if not, leave the optimizer's step out. Called by GradScaler
  // (gpipe/grad_scaler.h). Throws c10::ValueError for a `loss_scale` that is not positive and
  // finite.
  bool unscale_gradients_(double loss_scale);

  // Whether the layer is in this process. Layers of other processes are on meta, under the same
  // keys: they have shapes and no memory. The index is as for operator[].
  bool is_here(int64_t layer) const;
  // All parameters, in the model's order, each once. A parameter that several layers have
  // registered is listed once for each of them by torch::nn::Module, and an optimizer would step it
  // as often.
  std::vector<at::Tensor> parameters(bool recurse = true) const;
  // The parameters that are here, in the model's order, each once: for this process's optimizer.
  std::vector<at::Tensor> local_parameters() const;
  // local_parameters() with their names in the model, each under its first name: for groups of an
  // optimizer.
  torch::OrderedDict<std::string, at::Tensor> local_named_parameters() const;
  // The bits of all parameters, those of other processes included, as 16 hexadecimal digits: equal
  // for equal parameters, whatever the layout.
  std::string parameter_hash() const;
  // For a model that was built on meta (meta/meta_scope.h) because it is larger than one machine:
  // gives memory and first values to the parameters and buffers of this process that are still on
  // meta. Random values follow torch::manual_seed of rank 0 and do not depend on the cut. Throws
  // c10::ValueError for an empty `init`.
  void materialize(const LayerInit& init);

  const std::vector<int64_t>& balance() const { return balance_; }
  const std::vector<torch::Device>& devices() const { return devices_; }
  int64_t chunks() const { return chunks_; }
  Checkpoint checkpoint() const { return checkpoint_; }
  // The checkpoint mode of each partition.
  const std::vector<Checkpoint>& partition_checkpoints() const { return partition_checkpoints_; }
  // Which worker runs each stage: GPipeOptions::placement, or a worker for each. Throws
  // std::invalid_argument for a model without layers.
  Placement placement() const;
  // GPipeOptions::groups; over replicas at least as many as there are replicas.
  int64_t groups() const { return groups_; }
  // GPipeOptions::shared_inputs.
  const std::vector<int64_t>& shared_inputs() const { return shared_inputs_; }
  // GPipeOptions::deferred_batch_norm.
  bool deferred_batch_norm() const { return deferred_batch_norm_; }
  // The processes that the pipeline runs over.
  const World& world() const { return world_; }
  // Intra-op threads of each stage on the CPU.
  int64_t cpu_threads_per_stage() const { return cpu_threads_per_stage_; }

  // The plain model: a new Sequential of the same layers under the same keys. The layers stay where
  // they are, so it runs as a whole only if that is one device. Throws c10::ValueError for a
  // pipeline (or a replica) over several processes.
  torch::nn::Sequential sequential() const;

  // The layers of all partitions, in the model's order. A negative index counts from the end.
  // operator[] throws c10::IndexError for an index that no layer has.
  size_t size() const { return layers_.size(); }
  const std::shared_ptr<torch::nn::Module>& operator[](int64_t index) const;
  std::vector<std::shared_ptr<torch::nn::Module>>::const_iterator begin() const {
    return layers_.begin();
  }
  std::vector<std::shared_ptr<torch::nn::Module>>::const_iterator end() const {
    return layers_.end();
  }

  // Which activations and skips go from which partition to which, for simulate() and for traces
  // (gpipe/timeline/timeline.h).
  Routes routes() const;

  // Where a layer or the loss function threw the exception of the last run; nullopt if the run
  // succeeded, or if something else failed (an observer, say). A call that is refused before it
  // runs anything does not change this.
  std::optional<Failure> last_failure() const;

  // How each partition uses GPipeOptions::graphs; empty without that option. Throws c10::ValueError
  // inside a layer, a hook or an observer.
  std::vector<GraphUse> graph_use() const;

  // Moving the pipeline throws c10::TypeError, because each partition has its own device. Casting
  // works.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;

  // Called by torch::load. LibTorch puts tensors on the device that they were saved from, or that
  // torch::load is given; here every layer stays on its partition's device. Throws c10::ValueError
  // for layers or shapes that are not those of the model, c10::Error for missing tensors; nothing
  // is loaded then, unless a layer's own load() writes into its tensors. (LibTorch alone takes any
  // shape.)
  void load(torch::serialize::InputArchive& archive) override;

  // Called by torch::save. Over several processes it throws c10::ValueError, because no process has
  // all values.
  void save(torch::serialize::OutputArchive& archive) const override;

  // Over several processes a step compares how often each process has called zero_grad, and warns
  // once if the numbers differ.
  void zero_grad(bool set_to_none = true) override;

  void pretty_print(std::ostream& stream) const override;

  // For the library's own functions; null for a model without layers.
  internal::Pipeline* pipeline() const { return pipeline_.get(); }

 private:
  friend class ZeroOptimizer;  // uses call_name()

  // Moves each layer, with the gradients of its parameters, to its partition's device.
  void place_layers();
  // Throws c10::ValueError if a layer was replaced, or something was registered, since the pipeline
  // was made, because the pipeline still runs the layers that it was made of.
  void check_layers() const;
  // The part of the constructor that the processes of a world run together.
  void build(const torch::nn::Sequential& module, const GPipeOptions& options);
  void check_world(const GPipeOptions& options) const;
  // Over replicas: throws if the parameters or buffers of the replicas differ.
  void agree_on_values(const char* what) const;
  // Over replicas: throws c10::ValueError if the tensor requires a gradient and is not a leaf.
  void check_no_way_behind(const char* what, size_t number, const at::Tensor& tensor,
                           bool needs_record) const;
  internal::Processes* processes() const { return world_.processes().get(); }
  // Waits for all processes at the end of a call in which they would not meet otherwise.
  void agree_on_end(const char* what) const;
  // The name under which processes compare their calls, like "step of pipeline 0".
  std::string call_name(const char* what) const;

  // `options`: null for a forward.
  std::unique_ptr<internal::Pass> prepare(const char* what, const Tensors& inputs,
                                          bool needs_record, const StepOptions* options) const;
  // `one_output`: whether the model must give exactly one output, in the process that has outputs.
  Tensors forward_all(const Tensors& inputs, bool one_output);
  Tensors run_forward(const Tensors& inputs, bool one_output);
  StepResult run_step(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                      const StepOptions& options);
  StepResult run_evaluation(const Tensors& inputs, const Tensors& targets, const LossFn& loss_fn,
                            const StepOptions& options);
  // The parts that step and evaluate share, before and after the run.
  std::unique_ptr<internal::Pass> prepare_losses(const Tensors& inputs, const Tensors& targets,
                                                 const LossFn& loss_fn, const StepOptions& options,
                                                 bool backward) const;
  Schedule schedule_of(const char* what, const StepOptions& options,
                       const internal::Pass& pass) const;
  Tensors outputs_of(const internal::Pass& pass, const Tensors& inputs) const;
  StepResult result_of(const char* what, internal::Pass& pass, const Tensors& inputs,
                       const StepOptions& options) const;

  World world_;
  int64_t number_ = 0;  // the number of this pipeline among those of these processes
  int64_t zero_grads_ = 0;
  bool on_meta_ = false;  // layers of this process are still on meta: materialize() must be called
  std::vector<int64_t> balance_;
  std::vector<torch::Device> devices_;
  int64_t chunks_;
  Checkpoint checkpoint_;
  std::vector<Checkpoint> partition_checkpoints_;
  int64_t groups_;  // 0: gradients are not grouped
  std::vector<int64_t> shared_inputs_;
  bool deferred_batch_norm_;
  std::optional<Placement> placement_;
  int64_t cpu_threads_per_stage_;
  std::vector<std::shared_ptr<torch::nn::Module>> layers_;
  std::vector<torch::nn::AnyModule> callable_layers_;  // the same modules, with their types
  std::optional<internal::ValueKind> input_kind_;
  std::shared_ptr<internal::Pipeline> pipeline_;  // null for a model without layers
};

// The holder of a GPipeImpl, as TORCH_MODULE makes holders. It can also be called, and be made of a
// balance without further options:
//   GPipe pipe(model, {4, 4});
//   torch::Tensor output = pipe(input);
class GPipe : public torch::nn::ModuleHolder<GPipeImpl> {
 public:
  using torch::nn::ModuleHolder<GPipeImpl>::ModuleHolder;
  using Impl [[maybe_unused]] = GPipeImpl;

  GPipe(torch::nn::Sequential module, GPipeOptions options)
      : ModuleHolder(std::make_shared<GPipeImpl>(std::move(module), std::move(options))) {}
  GPipe(torch::nn::Sequential module, std::vector<int64_t> balance)
      : GPipe(std::move(module), GPipeOptions(std::move(balance))) {}

  // ModuleHolder's operator() cannot choose between two forwards.
  torch::Tensor operator()(torch::Tensor input) { return get()->forward(std::move(input)); }
  Tensors operator()(Tensors inputs) { return get()->forward(std::move(inputs)); }
};

}  // namespace gpipe

#endif  // GPIPE_GPIPE_H_
