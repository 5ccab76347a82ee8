// fused_operators: operators that LibTorch makes of others, and fuses on some devices, go on meta
// the way that they go on the target (meta_target.h).
#ifndef META_FUSED_OPERATORS_H_
#define META_FUSED_OPERATORS_H_

namespace gpipe::internal {

// Registers them for meta tensors. Call it once.
void install_fused_operators();

}  // namespace gpipe::internal

#endif  // META_FUSED_OPERATORS_H_
