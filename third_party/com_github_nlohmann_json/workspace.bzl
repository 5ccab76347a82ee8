load("//third_party:system.bzl", "system_library")

def repo():
    system_library(
        name = "com_github_nlohmann_json",
        build_file = Label("//third_party/com_github_nlohmann_json:system.BUILD.bazel"),
        package = "nlohmann-json3-dev",
        probe = "include/nlohmann/json.hpp",
    )
