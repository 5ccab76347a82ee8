load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cuda",
    # CCCL's headers are named as the standard library's (nv/target). They lie among the others before CUDA 13, in a
    # folder of their own since.
    hdrs = glob(
        [
            "include/*.h",
            "include/*.hpp",
            "include/cccl/cuda/**",
            "include/cccl/nv/**",
            "include/crt/**",
            "include/cuda/**",
            "include/nv/**",
        ],
        allow_empty = True,
    ),
    defines = ["GPIPE_HAS_CUDA_TOOLKIT=1"],
    includes = [
        "include",
        "include/cccl",
    ],
    linkopts = [
        "-L%{lib}",
        "-Wl,-rpath,%{lib}",
        "-lcudart",
    ],
)

# For kernels of our own. LibTorch brings a shared runtime, perhaps of another patch version; a static one does not get
# into its way, and both use the same context.
cc_library(
    name = "cudart_static",
    linkopts = [
        "-L%{lib}",
        "-lcudart_static",
        "-ldl",
        "-lrt",
        "-pthread",
    ],
)

filegroup(
    name = "nvcc",
    srcs = ["bin/nvcc"],
)
