// install_meta_kernels: what models are made of runs on meta tensors, forward and backward.
//
// LibTorch's C++ has only some of its operators on the meta device; of the others (convolutions,
// norms, relu, embeddings, many losses, ...) the meta forms are written in Python. With those added
// here a model that was built in a MetaScope also trains there: no memory, no arithmetic, only
// tensors that know what they would be.
#ifndef META_META_KERNELS_H_
#define META_META_KERNELS_H_

namespace gpipe {

// From now on, and in the whole process, operators that this LibTorch lacks on the meta device
// allocate there what their CPU and CUDA kernels return: outputs, what they save for backward,
// gradients, each with its sizes, strides, type. No operator that LibTorch has is replaced, and
// none changes on any other device. docs/design/meta.md lists them.
//
// Call it before threads run operators on meta tensors. Again does nothing.
//
// Results are the CPU's; those of attention, LSTM and dropout are CUDA's in a MetaTargetScope for
// it (meta_target.h). docs/design/meta.md tells where CUDA keeps more or less beside that. Tensors
// that only a kernel needs, while it runs, mostly do not exist. Tensors are equal (at::equal) if
// they are the same memory.
//
// Throws nothing. Operators that give values (item) or as much as values say (nonzero,
// masked_select, unique, an index of booleans) cannot be on meta. They throw as before:
// c10::NotImplementedError, "aten::nonzero: attempted to run this operator with Meta tensors ...".
//
// Thread-safety: any thread may call it at any time; all return after the operators are there.
//
// Example:
//   gpipe::install_meta_kernels();
//   gpipe::MetaScope meta;
//   auto model = gpipe::models::resnet101();
//   model->forward(torch::empty({32, 3, 224, 224})).sum().backward();
void install_meta_kernels();

}  // namespace gpipe

#endif  // META_META_KERNELS_H_
