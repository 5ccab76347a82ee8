#include "python/extension/python_names.h"

#include <cstddef>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe::python {
namespace {

// What stands for what. A text that has another one in it comes first.
constexpr std::pair<std::string_view, std::string_view> kTexts[] = {
    // Checkpoint modes, and what a recompute needs.
    {"use Checkpoint::kNever for this partition (GPipeOptions::partition_checkpoints)",
     "give GPipe 'never' for this partition in `checkpoint`, a list"},
    {"use Checkpoint::kNever for this partition",
     "give GPipe checkpoint='never' ('never' for this partition in a list)"},
    {"use Checkpoint::kAlways for this partition",
     "give GPipe checkpoint='always' ('always' for this partition in a list)"},
    {"use Checkpoint::kNever", "give GPipe checkpoint='never'"},
    {"Checkpoint::kNever", "checkpoint='never'"},
    {"Checkpoint::kAlways", "checkpoint='always'"},
    {"(a guard, a `with`)", "(a `with`)"},
    {"(as set_data() does, and to() with", "(as `parameter.data = ...` does, and to() with"},
    {"through data(), as", "through `.data`, as"},
    {"a state that it keeps in a member or a buffer",
     "a state that it keeps in an attribute or a buffer"},
    {"setFloat32MatmulPrecision() or setFloat32Precision()",
     "torch.set_float32_matmul_precision()"},
    {"setSDPUse...() (Python: sdpa_kernel())", "torch.nn.attention.sdpa_kernel()"},
    // Placements, schedules, processes.
    {"the options' shared_inputs", "shared_inputs="},
    {"Placement::processes", "processes="},
    {"(ScheduleFacts), as 1F1B and all generated schedules except Schedule::gpipe are (instead of "
     "that: \"fill-drain\" of schedule_by_name)",
     "(Facts.ascending), as '1f1b' and all named ones except 'gpipe' are (instead of that: "
     "'fill-drain')"},
    {"(ScheduleFacts)", "(Facts.ascending)"},
    {"give a ScheduleGenerator (Schedule::one_f_one_b, say) instead of a fixed Schedule",
     "give the name of a schedule ('1f1b', say) instead of a Schedule"},
    {"a ScheduleGenerator (Schedule::one_f_one_b, say)", "the name of a schedule ('1f1b', say)"},
    {"Schedule::from_text", "schedule.parse"},
    {"Schedule::create", "Schedule"},
    {"whether StepOptions have a schedule", "whether a schedule is given"},
    {"GPipeOptions::devices({c10::Device(c10::kCUDA, number of this process on its machine)})",
     "devices=[f'cuda:{world.local_rank}']"},
    {"(torch::kCPU always does)", "('cpu' always does)"},
    {"give .world(world)", "give GPipe(world=world)"},
    {"World::rows(", "world.rows("},
    {"GPipe::local_parameters()", "model.local_parameters()"},
    {"(param_groups(), or", "(param_groups, or"},
    {"at::show_config()", "torch.__config__.show()"},
    // Losses and gradients.
    {"StepOptions has both reduction(kSum) and a weight",
     "reduction='sum' and a weight were given"},
    {"(see StepOptions::reduction)", "(reduction=)"},
    {"take at::real() or at::abs() of it", "take .real or .abs() of it"},
    {"torch::NoGradGuard", "torch.no_grad()"},
    {"torch::InferenceMode", "torch.inference_mode()"},
    {"sparse(true)", "sparse=True"},
    {"track_running_stats(false)", "track_running_stats=False"},
    // Layers and what they register.
    {"torch::nn::Identity", "nn.Identity()"},
    {", unless the later layer uses it without registering it, as a gpipe::TiedLayer "
     "(tied/tied_layer.h) does",
     ": put both layers into one partition, give both partitions one device, or untie them (a "
     "parameter for each)"},
    {"Compute what needs it in the last layer: one that derives from gpipe::TiedLayer gets a copy "
     "of "
     "it here (docs/guide/03-sequential-model.md#tied-weights)",
     "Compute it in the last layer, with the parameter registered there"},
    {"Let the layer that uses it derive from gpipe::TiedLayer (tied/tied_layer.h), by which it "
     "gets "
     "a copy here (docs/guide/03-sequential-model.md#tied-weights)",
     "Register the parameter in the layer that uses it (self.weight = other.weight)"},
    {"a module that a function captured, or of a member without register_module()",
     "a module in a plain list or a closure, or a tensor that is no nn.Parameter"},
    {"Register it in a layer (register_module, register_parameter)",
     "Make it an attribute of a layer"},
    {"(register_parameter)", "(an nn.Parameter as an attribute)"},
    {"Register the norm (register_module) in", "Make the norm an attribute of"},
    {"give it to register_module in the constructor of that layer",
     "make it an attribute of that layer"},
    {"has not registered it (register_module)", "does not have it as an attribute"},
    {"(a member of a layer, say", "(an attribute of a layer, say"},
    {"(skip/skippable.h)", "(gpipe.skip)"},
    {"Use the plain model for them (sequential())", "Use nn.Sequential(*pipe) for them"},
    {"Trace the plain model (sequential())", "Trace nn.Sequential(*pipe)"},
    {"torch::jit::tracer::trace", "torch.jit.trace"},
    // Planning.
    {" (#include \"balance/balance.h\")", ""},
    {" (#include \"balance/plan.h\")", ""},
    {"while a gpipe::MetaScope lives (meta/meta_scope.h)", "under `with torch.device('meta')`"},
    {"(gpipe::MetaScope builds it)", "(made under `with torch.device('meta')`)"},
    {"torch::tensor({1.0, 2.0})", "torch.tensor([1.0, 2.0])"},
    {"give it torch::kMeta", "give it device='meta'"},
    {"model->to()", "model.to()"},
    {"call plan() without that guard", "call plan() outside of torch.autocast"},
    {"call plan() inside a guard of autocast to", "call plan() under torch.autocast to"},
    {"give PlanOptions::deferred_batch_norm(true) (--deferred_batch_norm in the command)",
     "give deferred_batch_norm=True"},
    {"leave PlanOptions::deferred_batch_norm (--deferred_batch_norm in the command) out",
     "leave deferred_batch_norm out"},
};

struct Pattern {
  std::regex what;
  const char* with;
};

// For names that are made from others by a rule, after kTexts.
const std::vector<Pattern>& patterns() {
  static const auto* const all = new std::vector<Pattern>{
      {std::regex("say with GPipeOptions::placement which stages are in which process "
                  "\\(Placement::loop\\((\\d+), v\\), or Placement::one_each\\(\\d+\\)"
                  "\\.processes\\(\\{\\.\\.\\.\\}\\)\\)"),
       "say with placement=gpipe.schedule.loop($1, v), or processes=[...], which stages are in "
       "which process"},
      {std::regex("GPipeOptions::placement\\(Placement::of\\(\\{([^}]*)\\}\\)\\)"),
       "placement=[$1]"},
      {std::regex("\\b(chunks|groups)\\((\\d+)\\)"), "$1=$2"},
      {std::regex("\\bWorldOptions::(\\w+)"), "$1= of World.from_environment"},
      {std::regex("\\b(?:StepOptions\\(\\)\\.|\\w+Options::)(\\w+)\\(true\\)"), "$1=True"},
      {std::regex("\\b(?:\\w+Options|Progress)::(\\w+)"), "$1="},
      {std::regex("\\bkSum\\b"), "sum"},
      {std::regex("\\bkMean\\b"), "mean"},
      {std::regex("\\btorch::nn::"), "nn."},
      // torch::optim::Adam is what a checkpoint of C++ says of its optimizer.
      {std::regex("\\b(?:at|c10|torch)::(?!optim::)"), "torch."},
      {std::regex("(^|[^.\\w])autograd::grad\\b"), "$1torch.autograd.grad"},
      {std::regex("\\bgpipe::balance::"), "gpipe.balance."},
      {std::regex("\\b(gpipe|torch\\.autograd|Schedule|Placement|World|GPipe|ZeroOptimizer|"
                  "GradScaler)::"),
       "$1."},
  };
  return *all;
}

}  // namespace

std::string in_python(std::string text) {
  for (const auto& [what, with] : kTexts) {
    for (size_t place = text.find(what); place != std::string::npos;
         place = text.find(what, place + with.size())) {
      text.replace(place, what.size(), with);
    }
  }
  for (const Pattern& pattern : patterns()) {
    text = std::regex_replace(text, pattern.what, pattern.with);
  }
  return text;
}

}  // namespace gpipe::python
