// Ablation: what a pipeline can be made to leave out, for experiments.
#ifndef GPIPE_ABLATION_H_
#define GPIPE_ABLATION_H_

namespace gpipe {

// Takes away what makes a pipeline good, as in torchgpipe's ablation (experiments/unet_timeline).
// Results stay bitwise the same, except for the last bits in one case that
// docs/guide/17-same-training.md names: a tensor that leaves a stage by several routes.
struct Ablation {
  // Whether a skip goes straight from its stage to the one that pops it. If false, it goes through
  // every stage between, which holds it and sends it on.
  bool direct_skips = true;

  // Whether copies between devices have streams of their own. If false, they are on the streams on
  // which the stages compute, and these wait for each other. The option makes no difference on the
  // CPU.
  bool copy_streams = true;

  // Whether the last partition recomputes all checkpointed micro-batches before its first backward,
  // instead of each one just before its own backward.
  bool early_recomputes = false;
};

}  // namespace gpipe

#endif  // GPIPE_ABLATION_H_
