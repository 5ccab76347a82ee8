// fused_operators: operators that LibTorch composes of other operators, and fuses on some devices.
// On meta they are fused or composed as on the target (meta_target.h). The file also has gradients
// that LibTorch composes of more tensors on meta than on devices.
#ifndef META_FUSED_OPERATORS_H_
#define META_FUSED_OPERATORS_H_

namespace gpipe::internal {

// Registers these operators for meta tensors. Call it once.
void install_fused_operators();

}  // namespace gpipe::internal

#endif  // META_FUSED_OPERATORS_H_
