// install_meta_kernels: runs the operators of models on meta tensors, forward and backward.
//
// LibTorch's C++ has only some of its operators on the meta device. The meta forms of the others
// (convolutions, norms, relu, embeddings, many losses, ...) are written in Python. With the kernels
// added here, a model that was built in a MetaScope also trains there: no memory, no arithmetic,
// only tensors that know their sizes, strides and types.
#ifndef META_META_KERNELS_H_
#define META_META_KERNELS_H_

namespace gpipe {

// From now on, and in the whole process, operators that this LibTorch lacks on the meta device
// allocate there what their CPU and CUDA kernels return: outputs, what they save for backward,
// gradients, each with its sizes, strides, type. No operator that LibTorch has is replaced, and
// none changes on any other device. docs/design/meta.md lists them.
//
// Call it before threads run operators on meta tensors. A second call does nothing.
//
// Results have the shapes and types that they have on the CPU. In a MetaTargetScope for CUDA
// (meta_target.h), the results of attention, LSTM and dropout are those of CUDA;
// docs/design/meta.md lists other operators for which CUDA keeps more or less. Scratch tensors of a
// kernel mostly do not exist. Tensors are equal (at::equal) if they have the same memory.
//
// Throws nothing. Operators that return values (item), or whose output size depends on values
// (nonzero, masked_select, unique, an index of booleans), cannot run on meta. They throw as before:
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
