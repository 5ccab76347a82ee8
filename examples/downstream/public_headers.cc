// Each public header of GPipe can be included from another workspace, with the targets that the
// README names. Compiling this is the test.
#include "balance/balance.h"
#include "balance/explanation_text.h"
#include "balance/fit.h"
#include "balance/flops.h"
#include "balance/memory_plan.h"
#include "balance/memory_plan_text.h"
#include "balance/profile_file.h"
#include "diagnose/diagnose.h"
#include "gpipe/clip_grad.h"
#include "gpipe/gpipe.h"
#include "gpipe/options.h"
#include "gpipe/out_of_memory.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/drawing.h"
#include "gpipe/schedule/program.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/sequential.h"
#include "gpipe/schedule/simulate.h"
#include "gpipe/several_arguments.h"
#include "gpipe/stage_memory.h"
#include "gpipe/timeline/chrome_trace.h"
#include "gpipe/timeline/simulate_again.h"
#include "gpipe/timeline/time_split.h"
#include "gpipe/timeline/time_split_text.h"
#include "gpipe/timeline/timeline.h"
#include "gpipe/timeline/timeline_svg.h"
#include "meta/meta_kernels.h"
#include "meta/meta_scope.h"
#include "meta/meta_target.h"
#include "models/amoebanetd.h"
#include "models/head_loss.h"
#include "models/hugging_face.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"
#include "safetensors/safetensors.h"
#include "skip/skippable.h"

// A value of each, so that no header is empty here.
[[maybe_unused]] std::string describe(const gpipe::balance::MemoryPlan& plan) {
  return to_text(plan) + to_json(plan) + to_svg(plan, "a plan");
}
[[maybe_unused]] std::string describe(const gpipe::balance::Explanation& explanation) {
  return to_text(explanation);
}
